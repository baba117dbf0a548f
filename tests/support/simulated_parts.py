"""The parts of a job in simulated time: its disk, its workers and its record."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from benchflow_contracts import CapacityError, Completion, Dispatch, NodeError, StoreError, Ticket
from benchflow_jobs.scheduling import Latch, Schedule, SlotState, VariantPlan
from benchflow_testing.fakes import FakeClock, FakeJob, FakeJobStore

ATTEMPTS = 6
"""The attempts of a slot in all runs of a job together."""
ERRORS = (
    NodeError(boundary="agent", type="AgentError", message="it is broken"),
    NodeError(boundary="agent", type="AgentError", message="it is broken in another way"),
    NodeError(boundary="sandbox", type="SandboxLostError", message="gone", retryable=True),
    NodeError(boundary="agent", type="AccountError", message="no credit", stops_job=True),
)


@dataclass
class SimulatedDisk:
    """A slow disk, which is full at some times."""

    clock: FakeClock
    dice: random.Random
    full: list[tuple[float, float]]

    def room_at(self) -> float:
        """Return the next time at which the disk has room."""
        now = self.clock.now
        return max([now, *(end for begin, end in self.full if begin <= now < end)])

    async def write(self) -> None:
        """Wait for a write; raise if the disk is full."""
        await self.clock.sleep(self.dice.random())
        if self.room_at() > self.clock.now:
            raise StoreError("cannot write record.db: no space is left")


@dataclass
class SimulatedWorkers:
    """Workers of one driver. They take their time, fail, are lost, and report late and twice."""

    clock: FakeClock
    dice: random.Random
    group: asyncio.TaskGroup
    limits: Mapping[str, int]
    runs: Counter[tuple[int, int]]
    """The attempts that any worker of the job got."""
    used: Counter[str] = field(default_factory=Counter[str])
    ended: asyncio.Queue[Completion | None] = field(
        default_factory=asyncio.Queue[Completion | None]
    )
    cancelled: dict[str, asyncio.Event] = field(default_factory=dict[str, asyncio.Event])
    working: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])

    async def start(self) -> None:
        """Do nothing."""

    def capacity(self) -> Mapping[str, int]:
        """Return the limits."""
        return self.limits

    async def submit(self, dispatch: Dispatch) -> Ticket:
        """Take an attempt, or refuse it because the workers are gone."""
        self.runs[dispatch.index, dispatch.attempt] += 1
        if self.dice.random() < 0.02:
            raise CapacityError("the workers are gone")
        self.used.update(dispatch.needs)
        assert all(self.used[name] <= most for name, most in self.limits.items())
        ticket = Ticket(
            id=f"{dispatch.index}/{dispatch.attempt}",
            worker="w",
            job=dispatch.job,
            index=dispatch.index,
            attempt=dispatch.attempt,
        )
        self.cancelled[ticket.id] = asyncio.Event()
        task = self.group.create_task(self._work(ticket, dispatch))
        self.working.add(task)
        task.add_done_callback(self.working.discard)
        return ticket

    async def completions(self) -> AsyncIterator[Completion]:
        """Yield what the workers report."""
        while (completion := await self.ended.get()) is not None:
            yield completion

    async def cancel(self, ticket: Ticket, grace_sec: float) -> None:
        """End an attempt when its time is over."""
        self.cancelled[ticket.id].set()

    async def close(self) -> None:
        """End what runs, and then the reports."""
        if self.working:
            for task in self.working:
                task.cancel()
            await asyncio.wait([*self.working])
        self.ended.put_nowait(None)

    async def _work(self, ticket: Ticket, dispatch: Dispatch) -> None:
        end = Completion.of(dispatch, "cancelled")
        try:
            await self.clock.sleep(self.dice.expovariate(1 / 30))
            if not self.cancelled[ticket.id].is_set():
                end = self._end(dispatch)
        finally:
            self.used.subtract(dispatch.needs)
            self.ended.put_nowait(end)
        if self.dice.random() < 0.1:
            await self.clock.sleep(self.dice.random() * 100)
            # A lost worker may have ended its rollout: its completion comes after the next one.
            self.ended.put_nowait(self._end(dispatch) if end.status == "lost" else end)

    def _end(self, dispatch: Dispatch) -> Completion:
        status = self.dice.choices(["scored", "unscored", "lost"], [8, 3, 1])[0]
        if status != "unscored":
            return Completion.of(dispatch, "scored" if status == "scored" else "lost")
        error = self.dice.choices(ERRORS, [4, 4, 4, 1])[0]
        return Completion.of(dispatch, "unscored", error=error)


@dataclass
class Ledger:
    """What is durable of a job, and survives its drivers."""

    job: FakeJob
    variants: list[int] = field(default_factory=list[int])
    """The variant of each slot."""
    states: dict[int, SlotState] = field(default_factory=dict[int, SlotState])
    """The resolved slots."""
    scores: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    """The attempt and the epoch of the first score that was acknowledged, by slot."""
    granted: Counter[int] = field(default_factory=Counter[int])
    """The attempts that a requeue added, by slot."""

    def add(self, variant: int) -> None:
        """Add a slot to the schedule."""
        self.job.slots.append(f"s{len(self.variants)}")
        self.variants.append(variant)

    def attempts_of(self, index: int) -> int:
        """Return the greatest attempt number of a slot."""
        return max((each.attempt for each in self.job.attempts if each.index == index), default=0)

    def cut_short_of(self, index: int) -> int:
        """Return the number of attempts of a slot that did not end by themselves."""
        cut = {"interrupted", "cancelled"}
        return sum(each.index == index and each.status in cut for each in self.job.attempts)

    def schedule(self, variants: list[VariantPlan]) -> Schedule:
        """Return the schedule of the next driver. A failed slot runs again if it may."""
        schedule = Schedule(variants)
        for index, variant in enumerate(self.variants):
            attempts = self.attempts_of(index)
            tries = attempts - self.cut_short_of(index)
            if self.states.get(index) == SlotState.FAILED and tries < ATTEMPTS:
                del self.states[index]
            state = self.states.get(index, SlotState.WAITING)
            schedule.add(
                variant, attempts=attempts, cut_short=self.cut_short_of(index), state=state
            )
        return schedule


@dataclass
class SimulatedRecord:
    """The record as one driver writes it. A later driver fences it."""

    ledger: Ledger
    store: FakeJobStore
    disk: SimulatedDisk

    async def start(self, dispatch: Dispatch) -> None:
        """Record that an attempt runs."""
        await self.disk.write()
        await self.store.start(dispatch)
        attempt_and_epoch = self.ledger.scores.get(dispatch.index)
        if attempt_and_epoch is not None:
            # A late score of this driver's own rollout is possible, one that it read is not.
            assert attempt_and_epoch[1] == dispatch.epoch, "a slot with a score ran again"

    async def commit(self, completion: Completion) -> None:
        """Record how an attempt ended."""
        await self.disk.write()
        await self.store.commit(completion)
        if completion.status == "scored":
            key = completion.attempt, completion.epoch
            self.ledger.scores.setdefault(completion.index, key)
            self.ledger.states[completion.index] = SlotState.COMPLETED

    async def resolve(self, index: int, state: SlotState) -> None:
        """Record that a slot does not run again."""
        await self._fenced_write()
        self.ledger.states.setdefault(index, state)

    async def pause(self, latch: Latch, reason: str) -> None:
        """Record a pause."""
        await self._fenced_write()

    async def _fenced_write(self) -> None:
        await self.disk.write()
        if self.store.epoch != self.ledger.job.epoch:
            raise StoreError("a later run of the job has begun")
