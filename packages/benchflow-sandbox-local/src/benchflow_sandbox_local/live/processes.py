"""The processes of a live image, and their pipes."""

import resource
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from benchflow_contracts.errors import SnapshotError
from benchflow_sandbox_core.pipes import Streams
from benchflow_sandbox_core.sandbox_process import SandboxProcess

MAX_PROCESSES = 1000
"""A fork of this many processes takes half a minute."""
_PER_PROCESS = 6
"""Descriptors for both ends of three pipes, until the child has opened its ends."""
_PER_CHILD = 64
"""Other descriptors of this process for one child."""


@dataclass(frozen=True, slots=True)
class ImageProcess:
    """One process of a live image whose pipes the host had open."""

    id: str
    pid: int
    pipes: tuple[int | None, int | None, int | None]
    """The numbers of its pipes in the image; None for a pipe that one side had closed."""
    out: bytes
    """Its unread output."""
    err: bytes

    @classmethod
    def of(cls, process: SandboxProcess) -> "ImageProcess":
        """Return the record of a process of a frozen sandbox. Its pipes are parked and drained."""
        stdin, stdout, stderr = process.streams.ends
        # A pipe that no process inside has open is not in the image.
        inodes = [end.inode if end.used else None for end in (stdin, stdout, stderr)]
        pipes = (inodes[0], inodes[1], inodes[2])
        return cls(process.id, process.pid, pipes, stdout.buffered, stderr.buffered)

    def streams(self) -> Streams:
        """Create new pipes for the process in a restored sandbox."""
        streams = Streams(self.out, self.err)
        for end, inode in zip(streams.ends, self.pipes, strict=True):
            if inode is None:
                end.close()
        return streams


def refuse_too_many(processes: Sequence[SandboxProcess]) -> None:
    """Refuse to fork a sandbox with more processes than a child can get pipes for.

    Raises:
        SnapshotError: The sandbox has too many processes with open pipes.
    """
    if not processes:
        return
    count, (files, _) = len(processes), resource.getrlimit(resource.RLIMIT_NOFILE)
    if count > MAX_PROCESSES:
        raise SnapshotError(
            f"the pipes of {count} processes are open; a live snapshot supports {MAX_PROCESSES}",
            hint="close the processes that are not needed (aclose), then snapshot",
        )
    need = _PER_CHILD + _PER_PROCESS * count
    if files != resource.RLIM_INFINITY and need > files:
        raise SnapshotError(
            f"the pipes of {count} processes are open: a child needs {need} open files, and this"
            f" process may have {files}",
            hint="raise the limit (ulimit -n), or close the processes that are not needed",
            caused_by="host",
        )


async def park(processes: Iterable[SandboxProcess]) -> None:
    """Block all use of the pipes of a frozen sandbox and drain its output.

    Raises:
        SnapshotError: A process has not read all of its input. Retry later.
    """
    for process in processes:
        for end in process.streams.ends:
            await end.park()
        process.streams.stdout.drain()
        process.streams.stderr.drain()
    for process in processes:
        if count := process.streams.stdin.unread():
            raise SnapshotError(
                f"process {process.id!r} has not read {count} bytes of its input",
                hint="snapshot when it waits for input",
                retryable=True,
            )


def unpark(processes: Iterable[SandboxProcess]) -> None:
    """Unblock the pipes."""
    for process in processes:
        for end in process.streams.ends:
            end.unpark()


@dataclass(frozen=True, slots=True)
class PipeWiring:
    """New pipes for all processes of a restored sandbox."""

    streams: dict[str, Streams]
    """The pipes of each process, by its id."""
    inodes: list[int]
    """The numbers of the replaced pipes in the image, in the order of `fds`."""
    fds: list[int]

    @classmethod
    def of(cls, processes: Iterable[ImageProcess]) -> "PipeWiring":
        """Create the pipes."""
        wired: dict[str, Streams] = {}
        inodes: list[int] = []
        fds: list[int] = []
        with ExitStack() as undo:
            for process in processes:
                streams = wired[process.id] = undo.enter_context(process.streams())
                for inode, fd in zip(process.pipes, streams.child, strict=True):
                    if inode is not None:
                        inodes.append(inode)
                        fds.append(fd)
            undo.pop_all()
        return cls(wired, inodes, fds)

    def close_child_ends(self) -> None:
        """Close the sandbox's ends in this process, so that its death ends the streams."""
        for streams in self.streams.values():
            streams.close_child()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for streams in self.streams.values():
            streams.close()


@dataclass(frozen=True, slots=True)
class LiveState:
    """The processes of one instant, in an image of the engine."""

    name: str
    """The name of the image."""
    bytes: int
    """The size of all its files. Another size shows that the image is truncated."""
    processes: tuple[ImageProcess, ...]
    mounts: tuple[tuple[str, str], ...]
    """Host directory and target inside, of every mount."""
    door_ports: tuple[int, ...]
    """The ports of the doors inside."""
