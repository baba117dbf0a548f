"""Protocols for the parts of a sandbox that run commands."""

import asyncio
import signal
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from benchflow_sandbox_native import InitError

from .pipes import Streams


class Init(Protocol):
    """Starts, waits for and kills processes. Failures are `InitError`."""

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
        """Return the exit code as a shell reports it. Call this once."""
        ...

    async def kill(self, pid: int, signal: int, *, group: bool = True) -> None:
        """Send a signal to a process or to its group."""
        ...

    async def ping(self) -> object:
        """Return when init has answered."""
        ...

    async def rest(self) -> None:
        """Finish or cancel every call; new calls wait until `resume`."""
        ...

    def resume(self) -> None:
        """Allow calls again."""
        ...


class RunningBox(Protocol):
    """The running part of a sandbox, from a start or restore to the next restore."""

    @property
    def init(self) -> Init:
        """The init, which starts processes; raise `SandboxError` after the end."""
        ...

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        ...

    def streams(self) -> Streams:
        """Create the pipes of a new process."""
        ...


class LimitCounter(Protocol):
    """Counts how often the limits of a sandbox were reached."""

    def hits(self, kind: Literal["memory"], /) -> int:
        """Return how often the limit of `kind` killed a process so far."""
        ...


_SECONDS = 10.0
_ANSWER_SECONDS = 30.0
"""The init of a sandbox that uses up its limits answers sooner."""


class SupportsPing(Protocol):
    """The part of an init that `responds` needs."""

    async def ping(self) -> object:
        """Return when init has answered."""
        ...


async def responds(init: SupportsPing) -> bool:
    """Return whether init answers within 30 s. Processes inside cannot stop it."""
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            await init.ping()
    except (InitError, TimeoutError):
        return False
    return True


class ProcessWaiter(Protocol):
    """The part of an init that `reap` needs."""

    async def wait(self, pid: int) -> int:
        """Wait for the end of a process; return its exit code."""
        ...


async def reap(init: ProcessWaiter, pid: int) -> int:
    """Return the exit code of a killed process.

    It is 137 also if init does not report the end within 10 s: a killed process does not run,
    but a process that traces it inside can hide its end.
    """
    try:
        async with asyncio.timeout(_SECONDS):
            return await init.wait(pid)
    except TimeoutError:
        return 128 + signal.SIGKILL
