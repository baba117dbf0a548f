"""What a command or a process needs of whatever runs it."""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

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


class Life(Protocol):
    """One life of a sandbox."""

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


class Meter(Protocol):
    """Knows which limits a sandbox has met."""

    def hits(self, kind: Literal["memory"], /) -> int:
        """How often a process was killed for `kind` so far."""
        ...
