"""A worker backend in memory."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from functools import partial

from benchflow_contracts.errors import CapacityError
from benchflow_contracts.job import Completion, Dispatch, Executor, Ticket
from benchflow_contracts.tree import NodeError

from .executor import FakeExecutor
from .faults import FakeFaults, Fault


class FakeBackend:
    """Runs dispatches as tasks, and reports on demand what real workers report.

    A test may call `report` with any completion: a repeated one, a late one, one of a lost worker.
    Faults are keyed by `start`, `submit`, `cancel` and `resize`.
    """

    def __init__(
        self,
        executor: Executor | None = None,
        capacity: Mapping[str, int] | None = None,
        *,
        fail_on: Mapping[str, Fault] | None = None,
        hang_on: set[str] | None = None,
    ) -> None:
        self.faults = FakeFaults.of(fail_on, hang_on)
        self.dispatches: list[Dispatch] = []
        self.operations: list[str] = []
        self._executor = executor or FakeExecutor()
        self._capacity = dict(capacity or {"slots": 4})
        self._used = Counter[str]()
        self._tasks: dict[str, asyncio.Task[Completion]] = {}
        self._group = asyncio.TaskGroup()
        self._ended: asyncio.Queue[Completion | None] = asyncio.Queue()
        self._changed = asyncio.Event()
        self._is_closed = False

    async def start(self) -> None:
        """Record the start."""
        await self._note("start")
        await self._group.__aenter__()

    def capacity(self) -> Mapping[str, int]:
        """Return what the test set."""
        return dict(self._capacity)

    async def resize(self, capacity: Mapping[str, int]) -> None:
        """Set the resources."""
        await self._note("resize")
        self._capacity.update(capacity)
        self._wake()

    async def submit(self, dispatch: Dispatch) -> Ticket:
        """Start a task when its resources are free."""
        await self._note("submit")
        while self._is_refused(dispatch) or not self._fits(dispatch):
            if self._is_refused(dispatch):
                raise CapacityError(f"no worker has what slot {dispatch.slot!r} needs")
            await self._changed.wait()
        self._used.update(dispatch.needs)
        self.dispatches.append(dispatch)
        ticket = Ticket(
            id=f"fake-{len(self.dispatches)}",
            worker="fake",
            job=dispatch.job,
            index=dispatch.index,
            attempt=dispatch.attempt,
        )
        task = self._tasks[ticket.id] = self._group.create_task(self._run(dispatch))
        task.add_done_callback(partial(self._end, ticket, dispatch))
        return ticket

    async def completions(self) -> AsyncIterator[Completion]:
        """Yield each completion."""
        while (completion := await self._ended.get()) is not None:
            yield completion

    async def cancel(self, ticket: Ticket, grace_sec: float) -> None:
        """Cancel the task of an attempt."""
        await self._note("cancel")
        if task := self._tasks.get(ticket.id):
            task.cancel()
            await asyncio.wait([task], timeout=grace_sec)

    async def close(self) -> None:
        """Cancel every task. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self.operations.append("close")
        self._wake()
        for task in self._tasks.values():
            task.cancel()
        await self._group.__aexit__(None, None, None)
        self._ended.put_nowait(None)

    def report(self, completion: Completion) -> None:
        """Yield `completion` from `completions`."""
        self._ended.put_nowait(completion)

    async def _note(self, operation: str) -> None:
        self.operations.append(operation)
        await self.faults.raise_or_hang(operation)

    def _is_refused(self, dispatch: Dispatch) -> bool:
        return self._is_closed or any(
            amount > self._capacity.get(name, amount) for name, amount in dispatch.needs.items()
        )

    def _fits(self, dispatch: Dispatch) -> bool:
        return all(
            self._used[name] + amount <= self._capacity.get(name, self._used[name] + amount)
            for name, amount in dispatch.needs.items()
        )

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _run(self, dispatch: Dispatch) -> Completion:
        try:
            completion = await self._executor.run(dispatch, lambda _event: None)
        except Exception as error:  # noqa: BLE001 - a defect of one executor ends one attempt
            return _unscored(dispatch, error)
        if completion.index != dispatch.index:
            return _unscored(dispatch, ValueError("it returned the completion of another slot"))
        return completion

    def _end(self, ticket: Ticket, dispatch: Dispatch, task: "asyncio.Task[Completion]") -> None:
        del self._tasks[ticket.id]
        is_cancelled = task.cancelled()
        self.report(Completion.of(dispatch, "cancelled") if is_cancelled else task.result())
        self._used.subtract(dispatch.needs)
        self._wake()


def _unscored(dispatch: Dispatch, error: Exception) -> Completion:
    failure = NodeError(boundary="internal", type=type(error).__name__, message=str(error))
    return Completion.of(dispatch, "unscored", error=failure)
