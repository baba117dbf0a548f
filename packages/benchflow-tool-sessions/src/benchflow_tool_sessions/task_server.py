"""Servers of our tasks in other protocols: entry points of `benchflow.task_servers`."""

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, cast, runtime_checkable

from benchflow_contracts import AdapterOptions, ListedTask, Task, UsageError
from benchflow_engine.config import RunConfig
from benchflow_engine.task_formats import runnable_tasks
from benchflow_kernel import Registry

from .results import SessionLimits

GROUP: Final = "benchflow.task_servers"
SPLITS: Final = ("train", "validation", "test")
"""Directories of tasks with one of these names are splits. Other tasks are the split `train`."""
_NAMED: Final = re.compile(r"([^/:?=]+)=(.+)", re.DOTALL)
_UNSAFE: Final = re.compile(r"[^a-z0-9_.-]+")

AsgiApp = Any
"""An ASGI 3 application."""


@dataclass(frozen=True)
class TaskSet:
    """A named set of tasks, by split."""

    name: str
    tasks: Mapping[str, Sequence[Task]]
    refused: Sequence[ListedTask] = ()
    """Tasks that cannot run here, with the reasons."""

    @classmethod
    def read(
        cls, source: str, options: AdapterOptions | None = None, *, split: str | None = None
    ) -> "TaskSet":
        """Read `SOURCE` or `NAME=SOURCE`; a source is one of `bench tasks list`.

        Directories `train`, `validation` and `test` in a directory are its splits. `split` reads
        one of them.

        Raises:
            TaskError: The source or a task is malformed.
            UsageError: The source does not have the split.
        """
        match = None if Path(source).exists() else _NAMED.fullmatch(source)
        name, place = (match[1], match[2]) if match else ("", source)
        folders = {each: Path(place) / each for each in SPLITS if (Path(place) / each).is_dir()}
        places = {each: str(path) for each, path in folders.items()} or {SPLITS[0]: place}
        if split is not None:
            if split not in places:
                raise UsageError(
                    f"{place!r} does not have the split {split!r}",
                    hint=f"its splits are {', '.join(places)}",
                )
            places = {split: places[split]}
        used = options or AdapterOptions()
        found = {each: runnable_tasks(path, options=used) for each, path in places.items()}
        return cls(
            name or _name_of(place),
            {each: tuple(tasks.tasks) for each, tasks in found.items()},
            tuple(task for tasks in found.values() for task in tasks.refused),
        )

    @property
    def all(self) -> tuple[Task, ...]:
        """The tasks of all splits."""
        return tuple(task for tasks in self.tasks.values() for task in tasks)


@dataclass(frozen=True, slots=True)
class TaskServerSettings:
    """The operator's settings of a server, whatever its protocol is."""

    task_sets: tuple[TaskSet, ...]
    config: RunConfig = field(default_factory=RunConfig)
    """The configuration of each rollout."""
    jobs_dir: Path | None = None
    """The directory of the records; `None` keeps none."""
    limits: SessionLimits = field(default_factory=SessionLimits)
    most: int = 64
    """Sessions or rollouts that are open at one time."""
    idle_sec: float = 900.0
    """Seconds without a call until a session is deleted."""
    hosts: tuple[str, ...] = ()
    """The names of this server in the `Host` header, besides those of the loopback."""

    def __post_init__(self) -> None:
        ids = [task.id for task in self.tasks]
        if not ids:
            raise UsageError("the server has no task", hint="name a source with tasks")
        if twice := sorted({each for each in ids if ids.count(each) > 1}):
            raise UsageError(f"two tasks have the id {twice[0]!r}", hint="serve each task once")

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks of all sets. Each id occurs once."""
        return tuple(task for each in self.task_sets for task in each.all)


class TaskServer(Protocol):
    """Serves tasks by one protocol. An entry point is a callable without arguments for it.

    The entry point loads without the packages of an extra; `open_app` imports them.
    """

    @property
    def port(self) -> int:
        """The usual port."""
        ...

    @property
    def most(self) -> int:
        """The usual number of sessions or rollouts that are open at one time."""
        ...

    @property
    def token_header(self) -> str | None:
        """The header in which clients of the protocol send a token; `None` if they cannot."""
        ...

    @property
    def public_paths(self) -> Collection[str]:
        """Paths that need no token, such as one of a health check."""
        ...

    @property
    def runs_agents(self) -> bool:
        """Whether our agents act in the rollouts. Else the client acts."""
        ...

    def open_app(self, settings: TaskServerSettings) -> AbstractAsyncContextManager[AsgiApp]:
        """Return a context whose value is the ASGI application.

        At its end, all sessions are ended and their sandboxes deleted. The process checks the
        token and the `Host` header of each request, so the application does not.

        Raises:
            BenchFlowError: A package is missing, or the sandbox provider or a setting is wrong.
        """
        ...


class BaseTaskServer:
    """Defaults of a `TaskServer`: a bearer token, and clients that act."""

    port = 0
    most = 64
    token_header: str | None = "Authorization"  # noqa: S105 - the name of a header
    public_paths: Collection[str] = ()
    runs_agents = False


@runtime_checkable
class HasClientFiles(Protocol):
    """A task server whose clients need files, such as rows or a configuration."""

    async def write_client_files(
        self, settings: TaskServerSettings, url: str, directory: Path
    ) -> Sequence[Path]:
        """Write the files into an existing directory, and return their paths.

        Raises:
            BenchFlowError: A task does not start.
        """
        ...


def task_server(name: str) -> TaskServer:
    """Return the server of a protocol.

    Raises:
        UnknownProviderError: No package provides the protocol.
    """
    factory = cast("type[TaskServer]", Registry().resolve(GROUP, name))
    return factory()


def _name_of(place: str) -> str:
    last = Path(place).resolve().name if Path(place).exists() else place.rpartition("/")[2]
    return _UNSAFE.sub("-", last.lower()).strip("-._") or "tasks"
