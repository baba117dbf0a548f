"""Tasks of other formats, and their listing before anything runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import Field

from ._model import Model, RareModel
from .errors import TaskError
from .task import Task, TaskConfig


class TaskRefusal(RareModel):
    """Why one task cannot be used: it is malformed, or this machine cannot run it."""

    reason: str
    where: str | None = None
    """`file:key` or `file:line`, when there is one."""
    hint: str
    """One line that says what to do about it."""

    @classmethod
    def from_error(cls, error: TaskError) -> "TaskRefusal":
        """Return the refusal that says the same as `error`."""
        return cls(reason=str(error.args[0]), where=error.where, hint=error.hint)


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
        """Return whether `source` has this format. Fetches and changes nothing.

        Args:
            source: A path or a URL. It may name a directory of tasks or one task's own directory,
                and need not exist. Do not claim a `task.toml` of BenchFlow.
        """
        ...

    def list_tasks(self, source: str, *, dataset: str | None = None) -> Sequence[ListedTask]:
        """Return the tasks of `source`, or of its dataset `NAME` or `NAME@VERSION`.

        May fetch tasks that are not cached. A broken task is listed with a refusal. The own
        directory of a task is listed as this task.

        Raises:
            TaskError: The source itself is malformed, cannot be fetched, or does not have a task.
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


class TaskSplit(RareModel):
    """A part of a set of tasks."""

    name: str
    purpose: Literal["train", "validation", "test"] | None = None
    size: int | None = Field(default=None, ge=0)
    """The number of tasks; `None` if the number is unknown or infinite."""


class DataTask(RareModel):
    """A task that is data, without a directory. The engine writes a directory for it.

    Equal tasks give equal directories, and thus equal digests.
    """

    config: TaskConfig
    """`task.toml`. It names the `provider` of the environment, and usually the verifier
    `environment`."""
    instruction: str
    """The text of the task. A world with a prompt of its own replaces it."""
    data: Mapping[str, Any] = {}
    """The foreign task, as JSON. The environment's client gets it."""
    seed: int | None = Field(default=None, ge=0, lt=1 << 63)
    """The seed of the episode; `None`: one from the task's name."""


class TaskSource(Protocol):
    """Tasks that are data, such as those of a server. They may be without end.

    An entry point of the group `benchflow.task_sources` is a zero-argument callable that returns a
    TaskSource. `NAME://ADDRESS` selects the source that is registered as NAME.
    """

    def splits(self, address: str) -> Sequence[TaskSplit]:
        """Return the splits of the set at `address`, which is the text after `NAME://`.

        Raises:
            TaskError: The set cannot be read.
        """
        ...

    def tasks(
        self, address: str, split: str | None, *, start: int, limit: int
    ) -> Sequence[DataTask]:
        """Return at most `limit` tasks of a split, from number `start` on, in a fixed order.

        `split` may be `None` if the set has only one.

        Raises:
            TaskError: The set cannot be read.
            UsageError: The split is unknown or missing.
        """
        ...
