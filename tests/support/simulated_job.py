"""A job in simulated time: a clock that jumps, workers that fail, and a record in memory."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush

from benchflow_contracts import Completion, Dispatch, StoreError, Ticket
from benchflow_jobs.driver import JobDriver
from benchflow_jobs.scheduling import (
    End,
    Finish,
    Latch,
    Policy,
    Schedule,
    Scheduler,
    SlotState,
    VariantPlan,
)


class SimulatedClock:
    """Time passes when nothing else is left to do."""

    def __init__(self) -> None:
        self.now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []
        self._count = 0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        event = asyncio.Event()
        self._count += 1
        heappush(self._sleepers, (self.now + max(seconds, 0), self._count, event))
        await event.wait()

    async def run(self) -> None:
        while True:
            for _ in range(20):
                await asyncio.sleep(0)
            if self._sleepers:
                self.now, _, event = heappop(self._sleepers)
                event.set()


@dataclass
class SimulatedBackend:
    """Workers that take their time, fail, answer twice, and are lost."""

    clock: SimulatedClock
    dice: random.Random
    group: asyncio.TaskGroup
    capacity_of: Mapping[str, int]
    used: Counter[str] = field(default_factory=Counter[str])
    runs: Counter[tuple[int, int]] = field(default_factory=Counter[tuple[int, int]])
    ended: asyncio.Queue[Completion | None] = field(
        default_factory=asyncio.Queue[Completion | None]
    )
    cancelled: dict[str, asyncio.Event] = field(default_factory=dict[str, asyncio.Event])

    async def start(self) -> None:
        pass

    def capacity(self) -> Mapping[str, int]:
        return self.capacity_of

    async def submit(self, dispatch: Dispatch) -> Ticket:
        self.runs[dispatch.index, dispatch.attempt] += 1
        self.used.update(dispatch.needs)
        assert all(self.used[name] <= most for name, most in self.capacity_of.items())
        ticket = Ticket(
            id=f"{dispatch.index}/{dispatch.attempt}",
            worker="w",
            job=dispatch.job,
            index=dispatch.index,
            attempt=dispatch.attempt,
        )
        self.cancelled[ticket.id] = asyncio.Event()
        self.group.create_task(self._work(ticket, dispatch))
        return ticket

    async def completions(self) -> AsyncIterator[Completion]:
        while (completion := await self.ended.get()) is not None:
            yield completion

    async def cancel(self, ticket: Ticket, grace_sec: float) -> None:
        self.cancelled[ticket.id].set()

    async def close(self) -> None:
        self.ended.put_nowait(None)

    async def _work(self, ticket: Ticket, dispatch: Dispatch) -> None:
        await self.clock.sleep(self.dice.expovariate(1 / 30))
        status = self.dice.choices(["scored", "unscored", "lost"], [8, 2, 1])[0]
        if self.cancelled[ticket.id].is_set():
            status = "cancelled"
        completion = Completion.of(dispatch, status)
        self.used.subtract(dispatch.needs)
        self.ended.put_nowait(completion)
        if self.dice.random() < 0.1:
            await self.clock.sleep(self.dice.random() * 100)
            self.ended.put_nowait(completion)


@dataclass
class SimulatedRecord:
    """A record on a slow disk, which may be full."""

    clock: SimulatedClock
    dice: random.Random
    full_at: float | None = None
    committed: dict[int, dict[int, Completion]] = field(
        default_factory=dict[int, dict[int, Completion]]
    )
    resolved: dict[int, SlotState] = field(default_factory=dict[int, SlotState])
    duplicates: int = 0

    async def start(self, dispatch: Dispatch) -> None:
        await self.clock.sleep(self.dice.random())
        self._write()

    async def commit(self, completion: Completion) -> None:
        await self.clock.sleep(self.dice.random())
        self._write()
        attempts = self.committed.setdefault(completion.index, {})
        self.duplicates += completion.attempt in attempts
        attempts.setdefault(completion.attempt, completion)

    async def resolve(self, index: int, state: SlotState) -> None:
        self._write()
        assert index not in self.resolved
        self.resolved[index] = state

    async def pause(self, latch: Latch, reason: str) -> None:
        self._write()

    def _write(self) -> None:
        if self.full_at is not None and self.clock.now >= self.full_at:
            raise StoreError("cannot write record.db: no space is left")


@dataclass
class Simulation:
    """One job, from a seed."""

    seed: int
    full_at: float | None = None

    def run(self) -> tuple[Finish, SimulatedBackend, SimulatedRecord, Scheduler]:
        return asyncio.run(self._run())

    async def _run(self) -> tuple[Finish, SimulatedBackend, SimulatedRecord, Scheduler]:
        dice = random.Random(self.seed)
        clock = SimulatedClock()
        variants = [
            VariantPlan(f"v{n}", is_sequential=dice.random() < 0.3)
            for n in range(dice.randint(1, 3))
        ]
        schedule = Schedule(variants)
        for _ in range(dice.randint(0, 30)):
            schedule.add(dice.randrange(len(variants)))
        limits = {"slots": dice.randint(1, 6)}
        policy = Policy(
            max_attempts=4, deadline_sec=120, break_job_after=99, break_variant_after=99
        )
        scheduler = Scheduler(schedule, dict(limits), policy)
        record = SimulatedRecord(clock, dice, self.full_at)
        async with asyncio.TaskGroup() as group:
            backend = SimulatedBackend(clock, dice, group, limits)
            passing = group.create_task(clock.run())
            finish = await JobDriver(
                scheduler, backend, record, self._dispatch, self._end, clock
            ).run()
            # Late duplicates of completions are still on their way.
            passing.cancel()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
        return finish, backend, record, scheduler

    def _dispatch(self, index: int, attempt: int) -> Dispatch:
        return Dispatch(
            job="j",
            index=index,
            slot=f"s{index}",
            attempt=attempt,
            epoch=1,
            rollout=f"r{index}-{attempt}",
        )

    def _end(self, completion: Completion) -> End:
        match completion.status:
            case "scored":
                return End(scored=True)
            case "lost":
                return End(scored=False, fingerprint="lost", may_pass=True)
            case "cancelled":
                return End(scored=False, fingerprint="deadline")
            case "unscored":
                return End(scored=False, fingerprint="broken")
