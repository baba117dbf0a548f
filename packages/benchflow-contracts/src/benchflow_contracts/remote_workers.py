"""What backends share whose workers are reached over a network: their choice, and their mail.

A backend adds how its workers are found, and how it starts and closes. A worker adds how a message
reaches it, and what becomes of its attempts when it does not answer.
"""

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from .errors import CapacityError, UsageError
from .job import Completion, Dispatch, Ticket
from .room import Room, attempt_key


@dataclass(slots=True)
class SentAttempt:
    """An attempt that a worker has, or is about to get."""

    dispatch: Dispatch
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    is_lost: bool = False
    """Whether it was reported as lost. The attempt may still run, and end."""


class RemoteWorker(ABC):
    """The driver's side of one worker: attempts and cancellations wait until they are sent."""

    fatal: type[Exception]
    """The error after which the worker is lost. It is raised before other errors."""

    def __init__(self, name: str, room: Room, on_change: Callable[[], None]) -> None:
        """Prepare a worker. `on_change` is called when it may have room for an attempt."""
        self.name = name
        self.room = room
        self.is_available = False
        self.on_change = on_change
        self.attempts: dict[str, SentAttempt] = {}
        self._unsent: dict[str, Dispatch] = {}
        self._cancels: list[str] = []
        self._has_mail = asyncio.Event()

    def add(self, dispatch: Dispatch) -> None:
        """Hand out an attempt. The worker must have room for it."""
        self.room.hold(dispatch)
        key = attempt_key(dispatch)
        self.attempts[key] = SentAttempt(dispatch)
        self._unsent[key] = dispatch
        self._has_mail.set()

    async def cancel(self, key: str, grace_sec: float) -> None:
        """Cancel an attempt, and wait for its completion for `grace_sec` seconds."""
        attempt = self.attempts.get(key)
        if attempt is None:
            return
        if self._unsent.pop(key, None) is not None:
            self.end(key, Completion.of(attempt.dispatch, "cancelled"))
            return
        self._cancels.append(key)
        self._has_mail.set()
        with suppress(TimeoutError):  # its completion arrives later
            async with asyncio.timeout(grace_sec):
                await attempt.ended.wait()

    @abstractmethod
    def end(self, key: str, completion: Completion) -> None:
        """Report the completion of an attempt."""

    @abstractmethod
    async def send(self, dispatches: list[Dispatch], cancels: list[str]) -> None:
        """Send attempts, and then cancellations."""

    @abstractmethod
    async def collect(self) -> None:
        """Wait for completions and end their attempts, until the worker is lost."""

    async def exchange(self) -> None:
        """Send and collect at the same time. Raise the first error of either."""
        self.is_available = True
        self.on_change()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._send_mail())
                group.create_task(self.collect())
        except ExceptionGroup as errors:
            fatal = errors.subgroup(self.fatal)
            raise (fatal or errors).exceptions[0] from errors
        finally:
            self.is_available = False

    def discard_mail(self) -> None:
        """Send nothing of what waits."""
        self._unsent.clear()
        self._cancels.clear()

    def forget(self, key: str) -> SentAttempt | None:
        """Free the resources of an attempt that has ended, and wake those who wait for it."""
        attempt = self.attempts.pop(key, None)
        if attempt is not None:
            self.room.give_back(attempt.dispatch)
            attempt.ended.set()
            self.on_change()
        return attempt

    async def _send_mail(self) -> None:
        while True:
            await self._has_mail.wait()
            self._has_mail.clear()
            dispatches, self._unsent = [*self._unsent.values()], {}
            cancels, self._cancels = self._cancels, []
            await self.send(dispatches, cancels)


W = TypeVar("W", bound=RemoteWorker)


class RemoteBackend(Generic[W]):
    """Runs each dispatch on one of its workers, wholly. See `ResizableBackend`.

    `start` and `close` are those of a subclass. `workers` has what the capacity counts.
    """

    worker_kind: str
    """What a worker is called in errors."""
    no_worker_error: type[CapacityError]
    """Raised when no worker is left. The job stops, and can be resumed."""

    def __init__(
        self,
        capacity: Mapping[str, int] | None,
        *,
        lease_sec: float,
        start_sec: float,
        grace_sec: float,
    ) -> None:
        """Prepare the backend; see its subclasses for the arguments.

        Raises:
            UsageError: A time is not a positive number of seconds.
        """
        for seconds in (lease_sec, start_sec, grace_sec):
            if not 0 < seconds < math.inf:
                raise UsageError(f"{seconds!r} is not a positive number of seconds")
        self.start_sec = start_sec
        self.total = Room(capacity or {}, "the job")
        self.workers: dict[str, W] = {}
        self.failure = ""
        """Why no worker can be reached any more."""
        self._ended: asyncio.Queue[Completion | None] = asyncio.Queue()
        self._changed = asyncio.Event()

    def capacity(self) -> Mapping[str, int]:
        """Return the resources of all workers together, at most those that may be held."""
        limits = self.total.capacity
        found = Counter(slots=0)
        for worker in self.workers.values():
            found.update(worker.room.capacity)
        return {
            name: min(limits.get(name, found[name]), found.get(name, limits.get(name, 0)))
            for name in {**limits, **found}
        }

    async def resize(self, capacity: Mapping[str, int]) -> None:
        """Set the resources that may be held at once; see `ResizableBackend`."""
        self.total.resize(capacity)
        self.wake()

    async def submit(self, dispatch: Dispatch) -> Ticket:
        """Hand the attempt to the worker with the most room; see `WorkerBackend`.

        Raises:
            CapacityError: As `WorkerBackend.submit`; also if no worker is left for `start_sec`.
        """
        worker = await self._choose(dispatch)
        self.total.hold(dispatch)
        worker.add(dispatch)
        return Ticket(
            id=attempt_key(dispatch),
            worker=worker.name,
            job=dispatch.job,
            index=dispatch.index,
            attempt=dispatch.attempt,
        )

    async def completions(self) -> AsyncIterator[Completion]:
        """Yield each completion; see `WorkerBackend`."""
        while (completion := await self._ended.get()) is not None:
            yield completion

    async def cancel(self, ticket: Ticket, grace_sec: float) -> None:
        """End an attempt; see `WorkerBackend`."""
        worker = self.workers.get(ticket.worker)
        if worker is not None:
            await worker.cancel(ticket.id, grace_sec)

    def report(self, completion: Completion, freed: Dispatch | None) -> None:
        """Yield a completion, and free the resources of its dispatch if it is the first one."""
        self._ended.put_nowait(completion)
        if freed is not None:
            self.total.give_back(freed)
        self.wake()

    def end_completions(self) -> None:
        """Yield no more completions than those that were reported."""
        self._ended.put_nowait(None)

    def wake(self) -> None:
        """Let those who wait look for room again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, seconds: float | None) -> None:
        """Wait until something changes, for at most `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    async def _choose(self, dispatch: Dispatch) -> W:
        """Wait for a worker with room."""
        end = time.monotonic() + self.start_sec
        while True:
            if reason := self.total.refusal(dispatch):
                raise CapacityError(reason)
            if self.failure:
                raise self.no_worker_error(self.failure)
            workers = [each for each in self.workers.values() if each.is_available]
            fitting = [each for each in workers if each.room.fits(dispatch)]
            if fitting and self.total.fits(dispatch):
                return min(fitting, key=lambda each: each.room.load)
            refusals = [each.room.refusal(dispatch) for each in workers]
            if workers and all(refusals):
                raise CapacityError(str(refusals[0]))
            if workers:
                end = time.monotonic() + self.start_sec
                await self.wait(None)
                continue
            if (left := end - time.monotonic()) <= 0:
                raise self.no_worker_error(
                    f"no {self.worker_kind} is left for slot {dispatch.slot!r}"
                )
            await self.wait(left)
