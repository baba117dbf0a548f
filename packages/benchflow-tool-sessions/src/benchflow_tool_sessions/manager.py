"""Many sessions on one sandbox provider, by id, with limits and a reaper."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchflow_contracts import RolloutIdentity, SandboxProvider, Task
from benchflow_engine.config import RunConfig
from benchflow_engine.planes import open_provider

from .results import NoSessionError, SessionLimitError, SessionLimits
from .session import ToolSession

_SCOPE = "tool-sessions"
_LONGEST_POLL_SEC = 5.0


@dataclass(slots=True)
class _Entry:
    session: ToolSession
    used_at: float


class SessionManager:
    """The sessions of one server. The id of a session is the id of its rollout, or that of a child.

    A session that nobody looks up for `idle_sec` is closed and deleted, whether it has ended or
    not. Use a manager on one event loop.
    """

    def __init__(
        self,
        provider: SandboxProvider,
        config: RunConfig,
        *,
        jobs_dir: Path | None = None,
        limits: SessionLimits | None = None,
        most: int = 64,
        idle_sec: float = 900.0,
    ) -> None:
        self._provider = provider
        self._config = config
        self._jobs_dir = jobs_dir
        self._limits = limits or SessionLimits()
        self._most = most
        self._idle_sec = idle_sec
        self._entries: dict[str, _Entry] = {}
        self._starting = 0

    @classmethod
    @asynccontextmanager
    async def running(
        cls,
        config: RunConfig | None = None,
        *,
        provider: SandboxProvider | None = None,
        jobs_dir: Path | None = None,
        limits: SessionLimits | None = None,
        most: int = 64,
        idle_sec: float = 900.0,
    ) -> "AsyncGenerator[SessionManager]":
        """Yield a manager. At the end all its sessions are closed and their sandboxes deleted.

        Without `provider`, it opens and closes one of its own.
        """
        chosen = config or RunConfig()
        async with AsyncExitStack() as stack:
            if provider is None:
                provider = await stack.enter_async_context(open_provider(chosen))
            manager = cls(
                provider, chosen, jobs_dir=jobs_dir, limits=limits, most=most, idle_sec=idle_sec
            )
            # A group would wrap the errors of the caller's block.
            reaper = asyncio.create_task(manager._reap())  # noqa: TID251
            try:
                yield manager
            finally:
                reaper.cancel()
                await asyncio.wait({reaper})
                await manager.aclose()

    @property
    def sessions(self) -> Mapping[str, ToolSession]:
        """The sessions by id, also those that have ended."""
        return {ident: entry.session for ident, entry in self._entries.items()}

    async def open(
        self,
        task: Task,
        *,
        config: RunConfig | None = None,
        limits: SessionLimits | None = None,
        slot: str | None = None,
    ) -> ToolSession:
        """Open a session that is ready for calls.

        `slot` is a name of the caller for the session, on its sandboxes.

        Raises:
            SessionLimitError: There are too many sessions.
            BenchFlowError: The session did not start.
        """
        if len(self._entries) + self._starting >= self._most:
            raise SessionLimitError(f"{self._most} sessions are open, and no more are allowed")
        session = ToolSession(
            task,
            config or self._config,
            provider=self._provider,
            limits=limits or self._limits,
            jobs_dir=self._jobs_dir,
            identity=RolloutIdentity(scope=_SCOPE, slot=slot),
        )
        self._starting += 1
        try:
            await session.start()
        finally:
            self._starting -= 1
        self._entries[session.id] = _Entry(session, time.monotonic())
        return session

    def find(self, ident: str) -> ToolSession:
        """Return a session, and count it as used.

        Raises:
            NoSessionError: No session has the id.
        """
        try:
            entry = self._entries[ident]
        except KeyError:
            raise NoSessionError(f"no session has the id {ident!r:.200}") from None
        entry.used_at = time.monotonic()
        return entry.session

    async def fork(self, ident: str, n: int) -> list[ToolSession]:
        """Fork a session into `n` sessions, and return them; see `ToolSession.fork`.

        The children count as open sessions, and have ids of their own. The session itself is no
        longer found.

        Raises:
            NoSessionError: No session has the id.
            SessionLimitError: There would be too many sessions.
            BenchFlowError: As `ToolSession.fork`.
        """
        # The children of a fork that has begun are found, also if its caller is cancelled.
        return await asyncio.shield(self._fork(ident, n))

    async def _fork(self, ident: str, n: int) -> list[ToolSession]:
        session = self.find(ident)
        more = max(n, 1) - 1
        if len(self._entries) + self._starting + more > self._most:
            raise SessionLimitError(f"{self._most} sessions may be open, and a fork makes {more}")
        self._starting += more
        try:
            children = await session.fork(n)
        finally:
            self._starting -= more
        self._entries.pop(ident, None)
        for child in children:
            self._entries[child.id] = _Entry(child, time.monotonic())
        return children

    async def close(self, ident: str) -> None:
        """End a session and delete it. Idempotent."""
        entry = self._entries.pop(ident, None)
        if entry is not None:
            await entry.session.close()

    async def aclose(self) -> None:
        """End and delete all sessions."""
        entries = list(self._entries.values())
        self._entries.clear()
        async with asyncio.TaskGroup() as group:
            for entry in entries:
                group.create_task(entry.session.close())

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(min(_LONGEST_POLL_SEC, self._idle_sec / 4))
            before = time.monotonic() - self._idle_sec
            for ident, entry in list(self._entries.items()):
                if entry.used_at < before and not entry.session.is_busy:
                    self._entries.pop(ident, None)
                    await entry.session.close(f"no call came for {self._idle_sec:g} s")
