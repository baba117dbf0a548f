"""The sessions of the server: from the id that a client gets to the deletion of the sandbox."""

import asyncio
import hashlib
import hmac
import secrets
import time
import uuid
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from benchflow_contracts import BenchFlowError, Task
from benchflow_engine.config import RunConfig
from benchflow_tool_sessions import (
    ForkReplies,
    NoSessionError,
    SessionLimitError,
    SessionManager,
    ToolSession,
)

from .calls import SessionCalls
from .http_errors import RequestError

_START_SEC: Final = 25.0
"""A request waits for so long for a sandbox. Then the client tries again."""
_RETRY_SEC: Final = "2"
_FULL_RETRY_SEC: Final = "5"
_REMEMBERED: Final = 10_000


@dataclass(slots=True)
class _Entry:
    environment: str
    opening: "asyncio.Task[SessionCalls]"
    used_at: float = field(default_factory=time.monotonic)

    @property
    def calls(self) -> SessionCalls | None:
        if not self.opening.done() or self.opening.cancelled() or self.opening.exception():
            return None
        return self.opening.result()


class SessionTable:
    """The sessions by the ids that clients know. Use it on one event loop."""

    def __init__(
        self, manager: SessionManager, config: RunConfig, *, most: int, idle_sec: float
    ) -> None:
        self._manager = manager
        self._config = config
        self._most = most
        self._idle_sec = idle_sec
        self._key = secrets.token_bytes(32)
        self._entries: dict[str, _Entry] = {}
        self._deleted: deque[str] = deque(maxlen=_REMEMBERED)
        self._forks = ForkReplies()

    def new_id(self) -> str:
        """Return an id for a session that may be created. Nothing is kept of it."""
        ident = uuid.uuid4().hex
        return f"{ident}.{self._seal(ident)}"

    def create(
        self,
        sid: str,
        environment: str,
        task: Task,
        variables: Mapping[str, str],
        toolset: frozenset[str] | None = None,
    ) -> None:
        """Start a sandbox for a session.

        Args:
            sid: An id of `new_id`.
            environment: The name of the environment of the task.
            task: The task.
            variables: Secrets of the client, for the commands of its tools.
            toolset: The names of the tools (default: all).

        Raises:
            RequestError: The id is unknown or in use, or there are too many sessions.
        """
        if sid in self._entries:
            raise RequestError(400, "Session already exists")
        self._check(sid)
        self._drop_lost()
        if len(self._entries) >= self._most:
            raise RequestError(429, "too many sessions are open", Retry_After=_FULL_RETRY_SEC)
        # The table owns the task: the request that starts it returns at once.
        opening = asyncio.create_task(self._open(sid, task, variables, toolset))  # noqa: TID251
        self._entries[sid] = _Entry(environment, opening)

    async def calls(self, sid: str, environment: str | None) -> SessionCalls:
        """Return the calls of a session whose sandbox is ready, and count the session as used.

        Args:
            sid: The id of the session.
            environment: The environment that the client names, if it names one.

        Raises:
            RequestError: The session is unknown (404), deleted (410), of another environment
                (400), still starting (503), or did not start (500).
        """
        entry = self._find(sid)
        if environment is not None and environment.lower() != entry.environment:
            raise RequestError(400, f"the session is of environment {entry.environment!r}")
        await asyncio.wait({entry.opening}, timeout=_START_SEC)
        if not entry.opening.done():
            raise RequestError(
                503,
                "Environment still starting.",
                Retry_After=_RETRY_SEC,
                X_Backend_State="starting",
            )
        if entry.opening.cancelled():
            raise RequestError(410, "Session deleted")
        error = entry.opening.exception()
        if isinstance(error, SessionLimitError):
            raise RequestError(429, str(error), Retry_After=_FULL_RETRY_SEC)
        if error is not None:
            message = str(error) if isinstance(error, BenchFlowError) else type(error).__name__
            raise RequestError(500, f"the session did not start: {message}")
        return entry.opening.result()

    def touch(self, sid: str) -> None:
        """Count a session as used.

        Raises:
            RequestError: The session is unknown (404) or deleted (410).
        """
        self._find(sid)

    async def fork(self, sid: str, n: int, *, key: str | None = None) -> list[str]:
        """Fork a session into `n` sessions, and return their ids. The forked session is deleted.

        The same `key` returns the same ids.

        Raises:
            RequestError: As `calls`.
            BenchFlowError: As `SessionManager.fork` and `ForkReplies.reply`.
        """
        found: list[str] = await self._forks.reply(key, sid, n, partial(self._fork, sid, n))
        return found

    async def _fork(self, sid: str, n: int) -> list[str]:
        entry, parent = self._find(sid), await self.calls(sid, None)
        children = await self._manager.fork(parent.session.id, n)
        if self._entries.pop(sid, None) is None:
            for child in children:
                await self._manager.close(child.id)
            raise RequestError(410, "Session deleted")
        self._deleted.append(sid)
        sids = [self.new_id() for _ in children]
        for ident, child in zip(sids, children, strict=True):
            calls = parent.of_child(child)
            # A task that is done, as one of a session that has started.
            opening = asyncio.create_task(_done(calls))  # noqa: TID251
            self._entries[ident] = _Entry(entry.environment, opening)
        return sids

    async def delete(self, sid: str) -> None:
        """End a session and delete its sandbox. Idempotent; an unknown id is ignored."""
        entry = self._entries.pop(sid, None)
        if entry is not None:
            self._deleted.append(sid)
            await self._end(entry)

    async def aclose(self) -> None:
        """End all sessions."""
        entries = list(self._entries.values())
        self._entries.clear()
        async with asyncio.TaskGroup() as group:
            for entry in entries:
                group.create_task(self._end(entry))

    async def _open(
        self, sid: str, task: Task, variables: Mapping[str, str], toolset: frozenset[str] | None
    ) -> SessionCalls:
        config = self._config
        if variables:
            agent = config.agent.model_copy(update={"env": {**config.agent.env, **variables}})
            config = config.model_copy(update={"agent": agent})
        session = await self._manager.open(task, config=config, slot=sid[:32])
        return SessionCalls(session, task, toolset)

    def _find(self, sid: str) -> _Entry:
        entry = self._entries.get(sid)
        if entry is None or self._is_lost(entry):
            self._entries.pop(sid, None)
            self._check(sid)
            raise RequestError(404, "Active environment not found")
        entry.used_at = time.monotonic()
        return entry

    def _is_lost(self, entry: _Entry) -> bool:
        """Return whether the manager deleted the session. If not, count the session as used."""
        if (calls := entry.calls) is None:
            return False
        try:
            self._manager.find(calls.session.id)
        except NoSessionError:
            return True
        return False

    def _drop_lost(self) -> None:
        before = time.monotonic() - self._idle_sec
        alive = self._manager.sessions
        for sid, entry in list(self._entries.items()):
            calls = entry.calls
            is_lost = calls is not None and calls.session.id not in alive
            is_failed = entry.opening.done() and calls is None and entry.used_at < before
            if is_lost or is_failed:
                del self._entries[sid]
                self._deleted.append(sid)

    async def _end(self, entry: _Entry) -> None:
        entry.opening.cancel()
        await asyncio.wait({entry.opening})
        if (calls := entry.calls) is not None:
            await self._close(calls.session, calls)

    async def _close(self, session: ToolSession, calls: SessionCalls) -> None:
        await self._manager.close(session.id)
        await calls.aclose()

    def _check(self, sid: str) -> None:
        if sid in self._deleted:
            raise RequestError(410, "Session deleted")
        ident, _, seal = sid.partition(".")
        if not hmac.compare_digest(seal.encode(), self._seal(ident).encode()):
            raise RequestError(404, "the server did not make this session id")

    def _seal(self, ident: str) -> str:
        return hmac.digest(self._key, ident.encode(), hashlib.sha256).hex()[:32]


async def _done(calls: SessionCalls) -> SessionCalls:
    return calls
