"""Tasks of other formats, and their listing before anything runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ._model import Model, RareModel
from .task import Task


class TaskRefusal(RareModel):
    """Why one task cannot be used: it is malformed, or this machine cannot run it."""

    reason: str
    where: str | None = None
    """`file:key` or `file:line`, when there is one."""
    hint: str
    """One line that says what to do about it."""


class ListedTask(Model):
    """One task of a source. An invalid task is listed with its refusals."""

    name: str
    path: Path | None
    """The directory on this machine; `None` if the task could not be fetched."""
    format: str
    digest: str | None = None
    """sha256 of the content, as the format defines it. `None` if it could not be read, or differs
    from the digest that the source promised."""
    facts: Mapping[str, str] = {}
    """Facts for the columns of a listing, in words of the format."""
    notes: tuple[str, ...] = ()
    """Warnings, which do not prevent a run."""
    refusals: tuple[TaskRefusal, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the task can run here."""
        return not self.refusals

    def refused(self, refusal: TaskRefusal) -> "ListedTask":
        """Return the task with one more refusal."""
        return self.model_copy(update={"refusals": (*self.refusals, refusal)})


class AdapterOptions(Model):
    """What the operator allows for tasks of other formats."""

    forward_env: tuple[str, ...] = ()
    """Names of the operator's variables that a task may use."""
    trust_host_access: bool = False
    """Whether a task may mount and read paths of this machine."""
    force_build: bool = False
    """Whether to build a task's Dockerfile also if the task names an image."""


class TaskAdapter(Protocol):
    """Reads tasks and datasets of another format."""

    def claims(self, source: str) -> bool:
        """Return whether `source` has this format. Fetches and changes nothing."""
        ...

    def list_tasks(self, source: str, *, dataset: str | None = None) -> Sequence[ListedTask]:
        """Return the tasks of `source`, or of its dataset `NAME` or `NAME@VERSION`.

        May fetch tasks that are not cached.

        Raises:
            TaskError: The source itself is malformed or cannot be fetched.
            UsageError: `dataset` does not exist, or must be given.
        """
        ...

    def load_task(self, path: Path) -> Task:
        """Return the task in the directory `path`, ready to run.

        The digest equals the one of the listing. Nothing is fetched, and no code of the task runs.

        Raises:
            TaskError: It is malformed, or cannot run here as its author intended.
        """
        ...
