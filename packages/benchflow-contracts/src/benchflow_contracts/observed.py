"""The files that the processes of a sandbox open, as the host sees them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class ObservedProcess:
    """One program that a process runs. A process that executes another program counts twice."""

    pid: int
    """The process id inside the sandbox; 0 if the process ended before its id was read."""
    parent: int | None
    """The index, in `ObservedFiles.processes`, of the process that started this one."""
    command: tuple[str, ...] = ()
    """The arguments as the process reports them. Do not trust them."""


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """The first opening of one file by one process."""

    path: str
    """Absolute, without links, and escaped as in `FileChanges`."""
    process: int
    """The index in `ObservedFiles.processes`."""
    executed: bool = False
    """Whether the file was opened to be executed."""


@dataclass(slots=True)
class ObservedFiles:
    """The result. It is complete when the block has ended and `lost` is `None`."""

    processes: Sequence[ObservedProcess] = field(default_factory=list[ObservedProcess])
    """The processes that opened a file, each parent before its children."""
    opened: Sequence[OpenedFile] = field(default_factory=list[OpenedFile])
    """In order of time."""
    lost: str | None = None
    """Why an opened file may be missing here."""


@runtime_checkable
class SupportsFileObservation(Protocol):
    """A sandbox whose host sees each file that is opened inside."""

    def observe_files(
        self, wanted: Callable[[str], bool]
    ) -> AbstractAsyncContextManager[ObservedFiles]:
        """Record the files that are opened and executed inside while the block runs.

        The host's kernel reports them. Nothing inside is run or trusted, so root inside cannot
        falsify the result. Directories, and paths for which `wanted` is false, are not included.
        `wanted` is called in another thread. Files in mounts and volumes are not observed.

        Raises:
            SandboxUnsupportedError: This machine or this sandbox does not support it.
            SandboxError: It failed; nothing is observed.
        """
        ...
