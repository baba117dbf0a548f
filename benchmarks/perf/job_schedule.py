"""What the scheduler of a job takes: CPU time of a slot, and memory of a waiting slot.

The driver, its queue and the local backend take part, with rollouts that end at once and a record
in memory. The peer of the CPU time is a bare task of asyncio for each slot.
"""

import asyncio
import time
import tracemalloc
from collections.abc import Callable
from statistics import median

from benchflow_contracts import Completion, Dispatch, Event
from benchflow_jobs.driver import JobDriver
from benchflow_jobs.local_backend import LocalBackend
from benchflow_jobs.scheduling import (
    End,
    Latch,
    Schedule,
    Scheduler,
    SlotState,
    Start,
    VariantPlan,
)
from report import emit

SLOTS, AT_ONCE, RUNS = 10_000, 64, 7
SCORED = End(scored=True)


class Nothing:
    """A rollout that ends at once, and a record that keeps nothing."""

    async def run(self, dispatch: Dispatch, on_event: Callable[[Event], None]) -> Completion:
        """End at once."""
        del on_event
        return Completion.of(dispatch, "scored")

    async def start(self, dispatch: Dispatch) -> None:
        """Keep nothing."""

    async def commit(self, completion: Completion) -> None:
        """Keep nothing."""

    async def resolve(self, index: int, state: SlotState) -> None:
        """Keep nothing."""

    async def pause(self, latch: Latch, reason: str) -> None:
        """Keep nothing."""


def schedule_of(slots: int) -> Schedule:
    """Return a schedule of one variant."""
    schedule = Schedule([VariantPlan("a")])
    for _ in range(slots):
        schedule.add(0)
    return schedule


def pure() -> float:
    """Return the CPU milliseconds of a slot in the scheduler alone."""
    scheduler = Scheduler(schedule_of(SLOTS), {"slots": AT_ONCE})
    begun = time.process_time()
    pending = scheduler.begin(0)
    while pending:
        action = pending.pop()
        if isinstance(action, Start):
            pending += scheduler.ended(action.index, action.attempt, SCORED, 0)
    return 1000 * (time.process_time() - begun) / SLOTS


async def driven() -> float:
    """Return the CPU milliseconds of a slot with the driver and the local backend."""
    nothing = Nothing()
    scheduler = Scheduler(schedule_of(SLOTS), {"slots": AT_ONCE})
    driver = JobDriver(
        scheduler,
        LocalBackend(nothing, {"slots": AT_ONCE}),
        nothing,
        lambda index, attempt: Dispatch(
            job="j", index=index, slot=f"t#{index}", attempt=attempt, epoch=1, rollout=f"r{index}"
        ),
        lambda _: SCORED,
    )
    begun = time.process_time()
    await driver.run()
    return 1000 * (time.process_time() - begun) / SLOTS


async def bare() -> float:
    """Return the CPU milliseconds of a task that does nothing, behind a semaphore."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def task() -> None:
        async with gate:
            await asyncio.sleep(0)

    begun = time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(SLOTS):
            group.create_task(task())
    return 1000 * (time.process_time() - begun) / SLOTS


def memory_kb() -> float:
    """Return the memory of 1,000 waiting slots."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    schedule = schedule_of(SLOTS)
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert schedule.unresolved == SLOTS
    return used / SLOTS * 1000 / 1024


def main() -> None:
    """Measure, the peer in the same loop."""
    alone: list[float] = []
    whole: list[float] = []
    peers: list[float] = []
    for _ in range(RUNS):
        alone.append(pure())
        whole.append(asyncio.run(driven()))
        peers.append(asyncio.run(bare()))
    emit("job_schedule.slot", alone, unit="CPU ms", limit=0.05, slots=SLOTS)
    peer = median(peers)
    facts = {"peer": round(peer, 4), "ratio": round(median(whole) / peer, 2), "slots": SLOTS}
    emit("job_schedule.slot_with_driver", whole, unit="CPU ms", **facts)
    emit("job_schedule.memory_of_1000_slots", [memory_kb()], unit="kB", limit=100)


if __name__ == "__main__":
    main()
