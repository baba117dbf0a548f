"""Sessions for programs without an event loop: a manager on a thread of its own."""

import asyncio
import atexit
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self, TypeVar

from benchflow_contracts import Task, UsageError
from benchflow_engine.config import RunConfig

from .manager import SessionManager
from .results import Outcome, SessionLimits, ToolResult, ToolSpec
from .session import ToolSession

_T = TypeVar("_T")


class BlockingSession:
    """A `ToolSession` whose methods block. Any thread may call them."""

    def __init__(self, sessions: "BlockingSessions", session: ToolSession) -> None:
        self._sessions = sessions
        self.session = session
        """The session itself, for its properties."""

    @property
    def id(self) -> str:
        """The id of the rollout."""
        return self.session.id

    @property
    def prompt(self) -> str:
        """The current prompt."""
        return self.session.prompt

    def tools(self) -> Sequence[ToolSpec]:
        """Return the tools; see `ToolSession.tools`."""
        return self._sessions.wait(self.session.tools())

    def call(self, name: str, arguments: Mapping[str, Any] | None = None) -> ToolResult:
        """Call a tool; see `ToolSession.call`."""
        return self._sessions.wait(self.session.call(name, arguments))

    def submit(self, message: str = "") -> Outcome | None:
        """End the turn; see `ToolSession.submit`."""
        return self._sessions.wait(self.session.submit(message))

    def fork(self, n: int) -> "list[BlockingSession]":
        """Fork the session into `n` sessions; see `SessionManager.fork`."""
        children = self._sessions.wait(self._sessions.manager.fork(self.id, n))
        return [BlockingSession(self._sessions, child) for child in children]

    def outcome(self) -> Outcome:
        """Wait for the outcome; see `ToolSession.outcome`."""
        return self._sessions.wait(self.session.outcome())

    def close(self) -> None:
        """End the session and delete it. Idempotent."""
        if self._sessions.is_open:
            self._sessions.wait(self._sessions.manager.close(self.id))


class BlockingSessions:
    """A `SessionManager` and its event loop, on a thread that starts with the object.

    The thread ends, and all sandboxes are deleted, at `close` or at the end of the process.
    """

    def __init__(
        self,
        config: RunConfig | None = None,
        *,
        jobs_dir: Path | None = None,
        limits: SessionLimits | None = None,
        most: int = 64,
        idle_sec: float = 900.0,
    ) -> None:
        self._config = config
        self._jobs_dir = jobs_dir
        self._limits = limits
        self._most = most
        self._idle_sec = idle_sec
        started: Future[tuple[SessionManager, asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(started,), name="tool sessions", daemon=True
        )
        self._thread.start()
        self.manager, self._loop, self._stop = started.result()
        self.is_open = True
        atexit.register(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self, task: Task, *, slot: str | None = None) -> BlockingSession:
        """Open a session that is ready for calls; see `SessionManager.open`."""
        return BlockingSession(self, self.wait(self.manager.open(task, slot=slot)))

    def find(self, ident: str) -> BlockingSession:
        """Return a session, and count it as used; see `SessionManager.find`."""

        async def find() -> ToolSession:
            return self.manager.find(ident)

        return BlockingSession(self, self.wait(find()))

    def fork(self, ident: str, n: int) -> list[str]:
        """Fork a session, and return the ids of the children; see `SessionManager.fork`."""
        return [child.id for child in self.wait(self.manager.fork(ident, n))]

    def ids(self) -> set[str]:
        """Return the ids of all sessions; see `SessionManager.sessions`."""

        async def ids() -> set[str]:
            return set(self.manager.sessions)

        return self.wait(ids())

    def wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run `work` on the event loop of the sessions, and return its result.

        Raises:
            UsageError: The sessions are closed.
        """
        if not self.is_open:
            work.close()
            raise UsageError("the sessions are closed", hint="make a new BlockingSessions")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """Close all sessions and end the thread. Idempotent."""
        if self.is_open:
            self.is_open = False
            atexit.unregister(self.close)
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def _run(
        self,
        started: "Future[tuple[SessionManager, asyncio.AbstractEventLoop, asyncio.Event]]",
    ) -> None:
        async def serve() -> None:
            stop = asyncio.Event()
            async with SessionManager.running(
                self._config,
                jobs_dir=self._jobs_dir,
                limits=self._limits,
                most=self._most,
                idle_sec=self._idle_sec,
            ) as manager:
                started.set_result((manager, asyncio.get_running_loop(), stop))
                await stop.wait()

        try:
            asyncio.run(serve())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)
