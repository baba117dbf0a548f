"""The backend that runs rollouts in this process, as tasks of its event loop."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

from benchflow_contracts import (
    CapacityError,
    Completion,
    Dispatch,
    Event,
    Executor,
    NodeError,
    Ticket,
)


@dataclass(frozen=True, slots=True)
class _Work:
    dispatch: Dispatch
    task: asyncio.Task[None]


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
        self._capacity = dict(capacity)
        self._on_event = on_event
        self._used = Counter[str]()
        self._works: dict[str, _Work] = {}
        self._changed = asyncio.Condition()
        self._ended: asyncio.Queue[Completion | None] = asyncio.Queue()
        self._group = asyncio.TaskGroup()
        self._count = 0

    async def start(self) -> None:
        """Get ready. The task that starts the backend has to close it."""
        await self._group.__aenter__()

    def capacity(self) -> Mapping[str, int]:
        """Return the resources of this process."""
        return dict(self._capacity)

    async def resize(self, capacity: Mapping[str, int]) -> None:
        """Set the resources that may be held at once; see `ResizableBackend`."""
        async with self._changed:
            self._capacity.update(capacity)
            self._changed.notify_all()

    async def submit(self, dispatch: Dispatch) -> Ticket:
        """Start the attempt when its resources are free; see `WorkerBackend`."""
        async with self._changed:
            for name, amount in dispatch.needs.items():
                if amount > self._capacity.get(name, amount):
                    raise CapacityError(
                        f"slot {dispatch.slot!r} needs {amount} of {name!r}, and this machine has "
                        f"{self._capacity[name]}"
                    )
            await self._changed.wait_for(lambda: self._fits(dispatch))
            self._used.update(dispatch.needs)
        self._count += 1
        ticket = Ticket(
            id=str(self._count),
            worker="local",
            job=dispatch.job,
            index=dispatch.index,
            attempt=dispatch.attempt,
        )
        name = f"rollout {dispatch.rollout}"
        task = self._group.create_task(self._run(ticket, dispatch), name=name)
        self._works[ticket.id] = _Work(dispatch, task)
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
        for work in self._works.values():
            work.task.cancel()
        await self._group.__aexit__(None, None, None)
        self._ended.put_nowait(None)

    def _fits(self, dispatch: Dispatch) -> bool:
        return all(
            self._used[name] + amount <= self._capacity.get(name, self._used[name] + amount)
            for name, amount in dispatch.needs.items()
        )

    async def _run(self, ticket: Ticket, dispatch: Dispatch) -> None:
        try:
            completion = await self._executor.run(
                dispatch, lambda event: self._on_event(dispatch, event)
            )
        except asyncio.CancelledError:
            completion = Completion.of(dispatch, "cancelled")
        except Exception as error:  # noqa: BLE001 - a defect of one executor ends one attempt
            failure = NodeError(
                boundary="internal",
                type=type(error).__name__,
                message=str(error),
                hint="run again with --debug and report the traceback",
            )
            completion = Completion.of(dispatch, "unscored", error=failure)
        self._works.pop(ticket.id, None)
        self._ended.put_nowait(completion)
        async with self._changed:
            self._used.subtract(dispatch.needs)
            self._changed.notify_all()
