"""The processes whose pipes a live image carries."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from benchflow_contracts.errors import SnapshotError
from benchflow_sandbox_core.pipes import Streams
from benchflow_sandbox_core.process import BoxProcess


@dataclass(frozen=True, slots=True)
class Carried:
    """One process that the host held when the image was taken."""

    id: str
    pid: int
    pipes: tuple[int | None, int | None, int | None]
    """The numbers that its pipes had; `None` for one that was closed already."""
    out: bytes
    """What it had printed and nobody had read."""
    err: bytes

    @classmethod
    def of(cls, process: BoxProcess) -> "Carried":
        """Note one process; its pipes are parked and emptied."""
        stdin, stdout, stderr = process.streams.ends
        inodes = (stdin.inode, stdout.inode, stderr.inode)
        return cls(process.id, process.pid, inodes, stdout.carried, stderr.carried)

    def streams(self) -> Streams:
        """Make the pipes of the process in another life."""
        made = Streams(self.out, self.err)
        for ours, inode in zip(made.ends, self.pipes, strict=True):
            if inode is None:
                ours.close()
        return made


async def park(processes: Iterable[BoxProcess]) -> None:
    """Keep everybody from the pipes of a frozen box and take what it has printed.

    Raises:
        SnapshotError: A process has not read all of its input. Retry later.
    """
    for process in processes:
        for end in process.streams.ends:
            await end.park()
        process.streams.stdout.take()
        process.streams.stderr.take()
    for process in processes:
        if count := process.streams.stdin.unread():
            raise SnapshotError(
                f"process {process.id!r} has not read {count} bytes of its input",
                hint="snapshot when it waits for input",
                retryable=True,
            )


def unpark(processes: Iterable[BoxProcess]) -> None:
    """Go on with the pipes as they are."""
    for process in processes:
        for end in process.streams.ends:
            end.unpark()


@dataclass(frozen=True, slots=True)
class Wiring:
    """New pipes for all carried processes of one life."""

    made: dict[str, Streams]
    inodes: list[int]
    """The pipes of the image that get a new one, in the order of `fds`."""
    fds: list[int]

    @classmethod
    def of(cls, carried: Iterable[Carried]) -> "Wiring":
        """Make the pipes."""
        made: dict[str, Streams] = {}
        inodes: list[int] = []
        fds: list[int] = []
        for process in carried:
            streams = made[process.id] = process.streams()
            for inode, fd in zip(process.pipes, streams.child, strict=True):
                if inode is not None:
                    inodes.append(inode)
                    fds.append(fd)
        return cls(made, inodes, fds)

    def connected(self) -> None:
        """Close the ends that are the box's now, so that its death is seen as an end."""
        for streams in self.made.values():
            streams.close_child()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for streams in self.made.values():
            streams.close()
