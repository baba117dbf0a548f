"""The backend that runs rollouts in this process, as tasks of its event loop."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import partial

from benchflow_contracts import Completion, Dispatch, Event, Executor, Ticket
from benchflow_contracts.room import Room

from .worker import run_attempt


@dataclass(frozen=True, slots=True)
class _Work:
    dispatch: Dispatch
    task: asyncio.Task[Completion]


def _ignore(dispatch: Dispatch, event: Event) -> None:
    del dispatch, event


class LocalBackend:
    """Runs each dispatch as a task. `on_event` follows the rollouts and must not block."""

    def __init__(
        self,
        executor: Executor,
        capacity: Mapping[str, int],
        *,
        on_event: Callable[[Dispatch, Event], None] = _ignore,
    ) -> None:
        self._executor = executor
        self._on_event = on_event
        self._room = Room(capacity)
        self._works: dict[str, _Work] = {}
        self._ended: asyncio.Queue[Completion | None] = asyncio.Queue()
        self._group = asyncio.TaskGroup()
        self._count = 0

    async def start(self) -> None:
        """Get ready. The task that starts the backend has to close it."""
        await self._group.__aenter__()

    def capacity(self) -> Mapping[str, int]:
        """Return the resources of this process."""
        return dict(self._room.capacity)

    async def resize(self, capacity: Mapping[str, int]) -> None:
        """Set the resources that may be held at once; see `ResizableBackend`."""
        self._room.resize(capacity)

    async def submit(self, dispatch: Dispatch) -> Ticket:
        """Start the attempt when its resources are free; see `WorkerBackend`."""
        await self._room.take(dispatch)
        self._count += 1
        ticket = Ticket(
            id=str(self._count),
            worker="local",
            job=dispatch.job,
            index=dispatch.index,
            attempt=dispatch.attempt,
        )
        running = run_attempt(
            self._executor, dispatch, lambda event: self._on_event(dispatch, event)
        )
        task = self._group.create_task(running, name=f"rollout {dispatch.rollout}")
        self._works[ticket.id] = _Work(dispatch, task)
        task.add_done_callback(partial(self._end, ticket, dispatch))
        return ticket

    async def completions(self) -> AsyncIterator[Completion]:
        """Yield each completion; see `WorkerBackend`."""
        while (completion := await self._ended.get()) is not None:
            yield completion

    async def cancel(self, ticket: Ticket, grace_sec: float) -> None:
        """End an attempt; see `WorkerBackend`. After the grace, do not wait for it any longer."""
        work = self._works.get(ticket.id)
        if work is not None:
            work.task.cancel()
            await asyncio.wait([work.task], timeout=grace_sec)

    async def close(self) -> None:
        """Cancel every attempt, wait for their teardown, and end `completions`."""
        if self._room.is_closed:
            return
        self._room.close()
        for work in self._works.values():
            work.task.cancel()
        await self._group.__aexit__(None, None, None)
        self._ended.put_nowait(None)

    def _end(self, ticket: Ticket, dispatch: Dispatch, task: asyncio.Task[Completion]) -> None:
        """Report an attempt. One that was cancelled before it began has run nothing."""
        del self._works[ticket.id]
        is_cancelled = task.cancelled()
        self._ended.put_nowait(
            Completion.of(dispatch, "cancelled") if is_cancelled else task.result()
        )
        self._room.give_back(dispatch)
