"""What a sandbox needs of whatever runs its processes."""

import socket
from collections.abc import Mapping, Sequence
from typing import Protocol

from .accounts import AccountBook
from .pipes import Streams


class Init(Protocol):
    """Starts processes, collects and kills them. Failures are `InitError`."""

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        uid: int,
        gid: int,
        groups: Sequence[int] = (),
        rlimits: Mapping[int, tuple[int, int]] = ...,
        fds: tuple[int, int, int],
    ) -> int:
        """Start a program in a session of its own; return its number."""
        ...

    async def wait(self, pid: int) -> int:
        """Return the exit code as a shell reports it. Can be asked once."""
        ...

    async def kill(self, pid: int, signal: int, *, group: bool = True) -> None:
        """Send a signal to a process or to its group."""
        ...

    async def rest(self) -> None:
        """End or take back every call; keep new ones waiting until `resume`."""
        ...

    def resume(self) -> None:
        """Let calls through again."""
        ...


class Body(Protocol):
    """One life of a sandbox."""

    root: int
    """A descriptor of the root directory."""
    netns: int
    """A descriptor of the network namespace; -1 for the host's."""
    listener: socket.socket | None
    """The relay's, until it is taken."""
    accounts: AccountBook

    @property
    def init(self) -> Init:
        """What starts processes; raise `SandboxError` once this life is over."""
        ...

    @property
    def closed(self) -> bool:
        """Whether this life is over."""
        ...

    def streams(self) -> Streams:
        """Make the pipes of a new process."""
        ...

    @property
    def pid(self) -> int:
        """The first process's number on the host; 0 when there is none."""
        ...

    async def ended(self) -> None:
        """Return when the first process is dead."""
        ...

    def close(self) -> None:
        """Let go. Idempotent."""
        ...
