"""Tasks of other formats: what is said of each before anything of it runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ._model import Model
from .task import Task


class TaskRefusal(Model):
    """Why one task cannot be used: it is malformed, or this machine cannot run it."""

    reason: str
    where: str | None = None
    """`file:key` or `file:line`, when there is one."""
    hint: str
    """One line that says what to do about it."""


class ListedTask(Model):
    """One task of a source. A bad task is listed with its refusals, and ends no listing."""

    name: str
    path: Path | None
    """Its directory on this machine; `None` when it could not be fetched."""
    format: str
    digest: str | None = None
    """sha256 over its content, as its own format defines it; `None` when it could not be read,
    or is not the one that its source promised."""
    facts: Mapping[str, str] = {}
    """What is worth a column, in words of its format."""
    notes: tuple[str, ...] = ()
    """What is odd and stops nothing."""
    refusals: tuple[TaskRefusal, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing speaks against running it here."""
        return not self.refusals

    def refused(self, refusal: TaskRefusal) -> "ListedTask":
        """Return it with one more refusal."""
        return self.model_copy(update={"refusals": (*self.refusals, refusal)})


class AdapterOptions(Model):
    """What an operator allows tasks of other formats."""

    forward_env: tuple[str, ...] = ()
    """Names of the operator's variables that files of a task may name."""
    trust_host_access: bool = False
    """A task's files may mount and read paths of this machine."""
    force_build: bool = False
    """Build an image from a task's Dockerfile also where the task names an image."""


class TaskAdapter(Protocol):
    """Reads tasks and datasets of another format."""

    def claims(self, source: str) -> bool:
        """Return whether `source` is of this format. Fetches and changes nothing."""
        ...

    def list_tasks(self, source: str, *, dataset: str | None = None) -> Sequence[ListedTask]:
        """Return the tasks of `source`, of its dataset `NAME` or `NAME@VERSION` when given.

        May fetch what is not cached.

        Raises:
            TaskError: The source itself is malformed or cannot be fetched.
            UsageError: `dataset` names nothing, or is needed to choose.
        """
        ...

    def load_task(self, path: Path) -> Task:
        """Return the task in the directory `path`, ready to be run.

        Its digest is that of the listing. Nothing is fetched, and nothing of it runs.

        Raises:
            TaskError: It is malformed, or cannot be run here as its author meant it.
        """
        ...
