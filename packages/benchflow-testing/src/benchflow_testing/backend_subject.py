"""A worker backend under test."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from benchflow_contracts.job import Completion, Dispatch, Ticket, WorkerBackend

from .check import Check, expect
from .fakes.executor import FakeRollout

T = TypeVar("T")

NOTHING_SEC = 0.2
"""How long the kit looks for something that must not happen."""


@dataclass(frozen=True, slots=True)
class BackendSubject:
    """A backend under test, which has to run the kit's `FakeExecutor`."""

    make: Callable[[Mapping[str, int]], WorkerBackend]
    """Returns a new backend with this capacity."""
    directory: Path
    """A directory that the tests and all workers share."""
    patience_sec: float = 30.0
    """The time for anything that has to happen."""

    @asynccontextmanager
    async def started(self, **capacity: int) -> AsyncGenerator["BackendSession"]:
        """Start a backend, and close it at the end."""
        backend = self.make(capacity)
        await backend.start()
        async with asyncio.TaskGroup() as group:
            try:
                yield BackendSession(backend, self.directory, group, self.patience_sec)
            finally:
                async with asyncio.timeout(self.patience_sec):
                    await backend.close()


@dataclass(slots=True)
class BackendSession:
    """A started backend, with what a check does to it."""

    backend: WorkerBackend
    directory: Path
    group: asyncio.TaskGroup
    patience_sec: float
    job: str = field(default_factory=lambda: f"job-{uuid4().hex[:8]}")
    _completions: AsyncIterator[Completion] | None = None

    def dispatch(self, index: int, do: FakeRollout = "score", **needs: int) -> Dispatch:
        """Return the first attempt at a slot, which does `do`."""
        return Dispatch(
            job=self.job,
            index=index,
            slot=f"slot-{index}",
            attempt=1,
            epoch=1,
            rollout=f"{self.job}-{index}",
            payload={"do": do, "at": str(self.directory)},
            needs=needs or {"slots": 1},
        )

    async def submit(self, index: int, do: FakeRollout = "score", **needs: int) -> Ticket:
        """Submit the first attempt at a slot, which has to be accepted."""
        submitting = self.backend.submit(self.dispatch(index, do, **needs))
        return await asyncio.wait_for(submitting, self.patience_sec)

    def later(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Begin `work`, and end it with the session at the latest."""
        return self.group.create_task(work)

    async def next(self) -> Completion:
        """Return the next completion."""
        self._completions = self._completions or self.backend.completions()
        return await asyncio.wait_for(anext(self._completions), self.patience_sec)

    async def rest(self) -> list[Completion]:
        """Return the completions until their end, which has to come."""
        completions = self._completions or self.backend.completions()
        async with asyncio.timeout(self.patience_sec):
            return [completion async for completion in completions]

    def allow(self, index: int) -> None:
        """Let a rollout that waits end."""
        self._mark(index, "go").touch()

    def has(self, index: int, mark: str) -> bool:
        """Return whether a rollout was `started` or `cancelled`."""
        return self._mark(index, mark).exists()

    async def until(self, index: int, mark: str) -> None:
        """Wait until a rollout was `started` or `cancelled`."""
        end = time.monotonic() + self.patience_sec
        while not self.has(index, mark):
            expect(time.monotonic() < end, f"the rollout of slot {index} was not {mark}")
            await asyncio.sleep(0.01)

    def _mark(self, index: int, mark: str) -> Path:
        return self.directory / f"{self.job}-{index}.{mark}"


async def expect_waiting(task: "asyncio.Task[Any]", reason: str) -> None:
    """Fail the running check if `task` ends although it has to wait."""
    await asyncio.wait([task], timeout=NOTHING_SEC)
    expect(not task.done(), f"submit did not wait: {reason}")


BackendCheck = Check[BackendSubject]
