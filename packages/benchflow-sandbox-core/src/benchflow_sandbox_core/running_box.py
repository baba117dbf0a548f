"""What a command or a process needs of whatever runs it."""

import asyncio
import signal
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


class RunningBox(Protocol):
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


class LimitCounter(Protocol):
    """Knows which limits a sandbox has met."""

    def hits(self, kind: Literal["memory"], /) -> int:
        """How often a process was killed for `kind` so far."""
        ...


_SECONDS = 10.0


class Waiting(Protocol):
    """The calls to a box's init."""

    async def wait(self, pid: int) -> int:
        """Return the exit code of a process once it is gone."""
        ...


async def reap(init: Waiting, pid: int) -> int:
    """Return the exit code of a killed process.

    It is 137 also when nothing is heard of its end for 10 s: a killed process runs no more,
    but whoever traces it inside may keep it from being seen.
    """
    try:
        async with asyncio.timeout(_SECONDS):
            return await init.wait(pid)
    except TimeoutError:
        return 128 + signal.SIGKILL
