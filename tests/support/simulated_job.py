"""A whole job in simulated time, from a seed, with faults of workers, disks, clocks and drivers.

The scheduler and the driver are the real ones. The workers, the disk, the record and the clock are
simulated. A job has several drivers, one after the other: a driver is killed, interrupted, or
replaced while it still runs.

`python simulated_job.py 10000` runs the seeds 0 to 9999, prints each seed that fails, and the CPU
time. `python simulated_job.py 1 42` repeats seed 42.
"""

import asyncio
import random
import sys
import time
from collections import Counter
from contextlib import suppress
from functools import partial

from benchflow_contracts import (
    Dispatch,
    StoreError,
    UsageError,
)
from benchflow_jobs.driver import JobDriver
from benchflow_jobs.executor import end_of
from benchflow_jobs.scheduling import (
    Finish,
    Latch,
    Policy,
    Scheduler,
    SlotState,
    VariantPlan,
)
from benchflow_testing.fakes import FakeClock, FakeJob, FakeJobStore
from simulated_parts import ATTEMPTS, Ledger, SimulatedDisk, SimulatedRecord, SimulatedWorkers

DAY = 86_400.0
DRIVERS = 200
"""More drivers than any job needs: one that needs more does not end."""
ENDPOINT = "model"


class Simulation:
    """One job, from a seed."""

    def __init__(self, seed: int) -> None:
        self.dice = dice = random.Random(seed)
        self.clock = FakeClock()
        full = [(at, at + dice.random() * 60) for at in self._times(dice.choice([0, 0, 1, 3]))]
        self.disk = SimulatedDisk(self.clock, dice, full)
        self.ledger = Ledger(FakeJob([]))
        self.variants = [self._variant(number) for number in range(dice.randint(1, 3))]
        for _ in range(dice.randint(0, 30)):
            self.ledger.add(dice.randrange(len(self.variants)))
        self.limits = {"slots": dice.randint(1, 6), "memory_mb": 800}
        self.model_limits = {ENDPOINT: dice.randint(1, 3)}
        self.policy = Policy(
            retries=dice.randint(0, 3),
            max_attempts=ATTEMPTS,
            deadline_sec=dice.choice([None, 120]),
            break_job_after=dice.choice([3, 99]),
            break_variant_after=dice.choice([2, 99]),
            prune_after=dice.choice([None, None, 3]),
        )
        self.runs = Counter[tuple[int, int]]()
        self.replaced: list[asyncio.Task[Finish]] = []
        """The drivers that ran on when the next one began."""
        self.finishes: list[Finish | None] = []
        """How each driver ended; `None` if it was killed, interrupted or replaced."""

    def _variant(self, number: int) -> VariantPlan:
        needs = {"slots": 1, "memory_mb": self.dice.choice([0, 200, 400])}
        endpoint = ENDPOINT if self.dice.random() < 0.3 else None
        return VariantPlan(f"v{number}", needs, endpoint, is_sequential=self.dice.random() < 0.3)

    def _times(self, count: int) -> list[float]:
        return sorted(self.dice.random() * 400 for _ in range(count))

    def run(self) -> None:
        """Run the job to its end. Raise AssertionError where it broke a promise."""
        asyncio.run(self._run())
        self._check_end()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.clock.run())
            group.create_task(self._set_the_clock())
            while Finish("completed") not in self.finishes[-1:]:
                assert len(self.finishes) < DRIVERS, "the job does not end"
                self.finishes.append(await self._run_driver(group))
                await self.clock.sleep(self.disk.room_at() - self.clock.now)
            # Replaced drivers and late reports are still on their way.
            await self.clock.sleep(2_000)
            assert all(driver.done() for driver in self.replaced), "a fenced driver does not end"
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    async def _set_the_clock(self) -> None:
        while True:
            await self.clock.sleep(self.dice.random() * 200)
            self.clock.wall += self.dice.choice([-DAY, DAY])

    async def _run_driver(self, group: asyncio.TaskGroup) -> Finish | None:
        store = self.ledger.job.begin()
        workers = SimulatedWorkers(self.clock, self.dice, group, self.limits, self.runs)
        scheduler = Scheduler(
            self.ledger.schedule([*self.variants]),
            dict(self.limits),
            self.policy,
            dict(self.model_limits),
        )
        record = SimulatedRecord(self.ledger, store, self.disk)
        dispatch = partial(self._dispatch, store.epoch)
        driver = JobDriver(scheduler, workers, record, dispatch, end_of, self.clock)
        running = group.create_task(driver.run())
        orders = group.create_task(self._give_orders(driver, store))
        fate = self.dice.choices(["ends", "killed", "interrupted", "replaced"], [4, 1, 1, 1])[0]
        await self._wait(running, None if fate == "ends" else self.dice.random() * 150)
        if running.done() or fate != "replaced":
            orders.cancel()
        if not running.done() and fate == "replaced":
            self.replaced.append(running)
            return None
        if not running.done():
            if fate == "killed":
                # From this instant on, nothing that it writes is durable.
                self.ledger.job.begin()
            running.cancel()
            await asyncio.wait([running])
        assert not +workers.used, "something still runs"
        if running.cancelled():
            return None
        assert not scheduler.running
        return running.result()

    def _dispatch(self, epoch: int, index: int, attempt: int) -> Dispatch:
        return Dispatch(
            job="j",
            index=index,
            slot=f"s{index}",
            attempt=attempt,
            epoch=epoch,
            rollout=f"r{index}-{attempt}-{epoch}",
        )

    async def _wait(self, running: "asyncio.Task[Finish]", after: float | None) -> None:
        if after is None:
            await asyncio.wait([running])
            return
        async with asyncio.TaskGroup() as group:
            sleeping = group.create_task(self.clock.sleep(after))
            await asyncio.wait([running, sleeping], return_when=asyncio.FIRST_COMPLETED)
            sleeping.cancel()

    async def _give_orders(self, driver: JobDriver, store: FakeJobStore) -> None:
        """Give the orders of people. Each pause is ended, so that time passes."""
        while True:
            await self.clock.sleep(self.dice.expovariate(1 / 100))
            if store.epoch != self.ledger.job.epoch:
                return
            match self.dice.randrange(6):
                case 0 | 1:
                    latch = self._latch()
                    driver.tell(lambda scheduler, _now, latch=latch: scheduler.pause(latch))
                    await self.clock.sleep(self.dice.random() * 100)
                    driver.tell(lambda scheduler, now, latch=latch: scheduler.resume(latch, now))
                case 2:
                    slots = {"slots": self.dice.randint(1, self.limits["slots"])}
                    driver.tell(lambda scheduler, now, to=slots: scheduler.set_limits(now, to))
                case 3 | 4 as what if len(self.ledger.variants) < 40:
                    with suppress(UsageError), driver.hold_open():
                        await self._change_slots(driver, store, extends=what == 4)
                case _:
                    driver.tell(lambda scheduler, _now: scheduler.drain())

    def _latch(self) -> Latch:
        variant = Latch("variant", self.dice.choice(self.variants).name)
        return self.dice.choice([Latch(), variant, Latch("endpoint", ENDPOINT)])

    async def _change_slots(self, driver: JobDriver, store: FakeJobStore, *, extends: bool) -> None:
        """Add a slot, or requeue those without a score: first in the record."""
        schedule, ledger = driver.scheduler.schedule, self.ledger
        with suppress(StoreError):
            await self.disk.write()
            if store.epoch != ledger.job.epoch:
                return
            if extends:
                number = self.dice.randrange(len(self.variants))
                ledger.add(number)
                driver.tell(lambda scheduler, now: scheduler.extend([], [number], now))
                return
            given_up = {SlotState.FAILED, SlotState.PRUNED}
            chosen = [i for i, state in ledger.states.items() if state in given_up]
            chosen = [i for i in chosen if schedule.state_of(i) in given_up]
            for index in chosen:
                del ledger.states[index]
                ledger.granted[index] += 1
            driver.tell(lambda scheduler, now: scheduler.requeue(chosen, now))

    def _check_end(self) -> None:
        """Require that the record has one outcome for each slot, and lost no score."""
        ledger = self.ledger
        assert ledger.states.keys() == set(range(len(ledger.variants))), "a slot is not resolved"
        assert set(self.runs.values()) <= {1}, "an attempt ran twice"
        counted = {each.index: each for each in ledger.job.attempts if each.counts}
        assert len(counted) == sum(each.counts for each in ledger.job.attempts), (
            "a slot counts twice"
        )
        for index, state in ledger.states.items():
            scored = state == SlotState.COMPLETED
            assert scored == (index in ledger.scores), f"slot {index} lost its score"
            if scored:
                best = counted[index]
                assert (best.attempt, best.epoch) == ledger.scores[index], "another score counts"
            most = ATTEMPTS + ledger.granted[index] + ledger.cut_short_of(index)
            assert ledger.attempts_of(index) <= most, f"slot {index} has too many attempts"


def main(count: int, first: int = 0) -> int:
    """Run seeds and print those that fail. Return how many failed."""
    failed: list[int] = []
    for seed in range(first, first + count):
        try:
            Simulation(seed).run()
        except (AssertionError, ExceptionGroup) as error:
            failed.append(seed)
            print(f"seed {seed}: {error!r}", flush=True)
    print(f"{count} seeds, {len(failed)} failed, {time.process_time():.1f} CPU s")
    return len(failed)


if __name__ == "__main__":
    sys.exit(bool(main(*map(int, sys.argv[1:3]))))
