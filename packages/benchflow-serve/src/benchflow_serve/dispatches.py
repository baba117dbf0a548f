"""Dispatches of jobs that drivers on other hosts send, each driver in a session with a lease."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from benchflow_contracts import Dispatch, Executor, UsageError
from benchflow_jobs.dispatch_executor import EXECUTOR, open_executor
from benchflow_jobs.leased_worker import Batch, LeasedWorker
from benchflow_serve_client.worker_models import WorkerSessionRequest, WorkerSessionStatus

from .problems import ConflictError, NotFoundError, QueueFullError
from .slots import SlotPool, SlottedExecutor

ExecutorFactory = Callable[..., AbstractAsyncContextManager[Executor]]
EXECUTORS: Final[Mapping[str, ExecutorFactory]] = {EXECUTOR: open_executor}
"""The executors that a driver may name. A request never names code of its own."""

_CHECKS: Final = 3
"""How often a lease is checked in its time."""
_MOST_CLOSED: Final = 10_000
_RETRY_SEC: Final = 2.0
_logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _WorkerSession:
    request: WorkerSessionRequest
    slots: int
    worker: LeasedWorker
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    failure: str = ""
    """Why the executor could not be opened."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class DispatchService:
    """Runs the dispatches of drivers, in the slots that the rollouts of the service use too.

    One job at a time may fill the slots. An attempt waits while rollouts have them.
    """

    def __init__(
        self, slots: SlotPool, executors: Mapping[str, ExecutorFactory] = EXECUTORS
    ) -> None:
        self._slots = slots
        self._executors = executors
        self._sessions: dict[str, _WorkerSession] = {}
        self._closed: OrderedDict[str, str] = OrderedDict()
        """Why each closed session could not be opened; empty if it was open."""
        self._group = asyncio.TaskGroup()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Allow sessions in the block. At its end, what they run is cancelled and torn down."""
        async with self._group:
            try:
                yield
            finally:
                for session in [*self._sessions.values()]:
                    self._group.create_task(session.worker.close())

    async def open(self, name: str, request: WorkerSessionRequest) -> WorkerSessionStatus:
        """Open a session, and wait until its executor can run dispatches. Repeatable.

        Raises:
            UsageError: The executor is not allowed, or cannot be opened here.
            ConflictError: The session was closed, or has been opened with another request.
            QueueFullError: Other sessions have all slots.
        """
        if request.executor not in self._executors:
            raise UsageError(
                f"{request.executor!r} is not the executor of a job",
                hint=f"a driver of this version sends {EXECUTOR!r}",
            )
        self._check_open(name)
        session = self._sessions.get(name) or self._create(name, request)
        if session.request != request:
            raise ConflictError(f"session {name} was opened by another request")
        await session.opened.wait()
        self._check_open(name, session.failure)
        return self._status(name, session)

    def _check_open(self, name: str, failure: str = "") -> None:
        if failure := failure or self._closed.get(name, ""):
            raise UsageError(
                f"this host cannot run the job: {failure}",
                hint="correct the host, then start the job again",
            )
        if name in self._closed:
            raise ConflictError(f"session {name} was closed", hint="open a session with a new id")

    async def start(self, name: str, dispatches: Sequence[Dispatch]) -> WorkerSessionStatus:
        """Start attempts. One that arrives twice runs once.

        Raises:
            NotFoundError: The session is not open, for example because its lease has ended.
            CapacityError: An attempt needs more than the session has.
        """
        session = self._find(name)
        await session.worker.start(dispatches)
        return self._status(name, session)

    async def collect(self, name: str, after: int) -> Batch:
        """Delete the completions up to a number, and return those after. Wait for one for a while.

        Raises:
            NotFoundError: The session is not open.
        """
        return await self._find(name).worker.collect(after)

    async def cancel(self, name: str, keys: Sequence[str]) -> WorkerSessionStatus:
        """Begin to cancel attempts. Unknown ones are ignored.

        Raises:
            NotFoundError: The session is not open.
        """
        session = self._find(name)
        await session.worker.cancel([*keys])
        return self._status(name, session)

    async def close(self, name: str) -> None:
        """Cancel what a session runs, and wait for its teardown. Repeatable.

        A session that was never opened cannot be opened after this.
        """
        self._note_closed(name)
        if (session := self._sessions.get(name)) is not None:
            await session.worker.close()
            await session.ended.wait()

    def _create(self, name: str, request: WorkerSessionRequest) -> _WorkerSession:
        free = self._slots.total - sum(each.slots for each in self._sessions.values())
        if free < 1:
            raise QueueFullError("another job uses this server", retry_after=_RETRY_SEC)
        options: dict[str, Any] = dict(request.options)
        opening = _open(self._executors[request.executor], options, self._slots)
        worker = LeasedWorker(opening, request.lease_sec, {"slots": free})
        session = self._sessions[name] = _WorkerSession(request, free, worker)
        self._group.create_task(self._serve(name, session))
        return session

    async def _serve(self, name: str, session: _WorkerSession) -> None:
        """Run a session until it is closed, or until its lease has ended."""
        worker, lease_sec = session.worker, session.request.lease_sec
        try:
            async with asyncio.TaskGroup() as group:
                living = group.create_task(worker.live())
                session.failure = await worker.ready()
                session.opened.set()
                while not living.done():
                    await asyncio.wait([living], timeout=lease_sec / _CHECKS)
                    if not living.done() and worker.silent_sec > lease_sec:
                        _logger.warning("the driver of session %s is silent: it is closed", name)
                        await worker.close()
        finally:
            self._note_closed(name, session.failure)
            del self._sessions[name]
            session.ended.set()

    def _find(self, name: str) -> _WorkerSession:
        session = self._sessions.get(name)
        if session is None or name in self._closed:
            raise NotFoundError(f"session {name} is not open", hint="open a new session")
        return session

    def _note_closed(self, name: str, failure: str = "") -> None:
        self._closed[name] = failure
        if len(self._closed) > _MOST_CLOSED:
            self._closed.popitem(last=False)

    @staticmethod
    def _status(name: str, session: _WorkerSession) -> WorkerSessionStatus:
        capacity = {"slots": session.slots}
        return WorkerSessionStatus(id=name, capacity=capacity, running=session.worker.running)


@asynccontextmanager
async def _open(
    factory: ExecutorFactory, options: Mapping[str, Any], slots: SlotPool
) -> AsyncGenerator[Executor]:
    """Open an executor. Wrong options fail in the session, and not in the server."""
    async with factory(**options) as executor:
        yield SlottedExecutor(executor, slots)
