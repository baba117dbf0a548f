"""Which files the processes of a sandbox open, as the host sees it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class ObservedProcess:
    """One program that a process runs. A process that executes another one counts twice."""

    pid: int
    """The number inside the sandbox; 0 when the process had ended before it was read."""
    parent: int | None
    """The index, in `ObservedFiles.processes`, of the process that started this one."""
    command: tuple[str, ...] = ()
    """The arguments, as the process shows them. They may be hostile."""


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """One file that one process opened, the first time."""

    path: str
    """Absolute, without links, and escaped as in `FileChanges`."""
    process: int
    """The index in `ObservedFiles.processes`."""
    executed: bool = False
    """Whether it was opened in order to run it as a program."""


@dataclass(slots=True)
class ObservedFiles:
    """What was observed. Complete when the block has ended and `lost` is `None`."""

    processes: Sequence[ObservedProcess] = field(default_factory=list[ObservedProcess])
    """Of those that opened a file; each parent before its children."""
    opened: Sequence[OpenedFile] = field(default_factory=list[OpenedFile])
    """In the order of time."""
    lost: str | None = None
    """Why a file that was opened may be missing here."""


@runtime_checkable
class SupportsFileObservation(Protocol):
    """What a sandbox can do whose host sees each file that is opened inside."""

    def observe_files(
        self, wanted: Callable[[str], bool]
    ) -> AbstractAsyncContextManager[ObservedFiles]:
        """Record the files that are opened and executed inside while the block runs.

        The host's kernel reports them: nothing inside is run or believed, so it holds against
        root inside. Directories, and paths for which `wanted` is false, are left out. `wanted`
        is called in another thread. Files in mounts, volumes among them, are not observed.

        Raises:
            SandboxUnsupportedError: This machine or this sandbox cannot do it.
            SandboxError: It failed; nothing is observed.
        """
        ...
