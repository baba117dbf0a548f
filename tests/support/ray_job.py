"""A job of waiting rollouts, driven by the scheduler and recorded in SQLite, on any backend."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchflow_contracts import Completion, Dispatch, Event, WorkerBackend
from benchflow_jobs.driver import JobDriver
from benchflow_jobs.executor import end_of
from benchflow_jobs.scheduling import (
    Finish,
    Latch,
    Policy,
    Schedule,
    Scheduler,
    SlotState,
    VariantPlan,
)
from benchflow_store.database import AttemptRow, Commit, JobReader, JobWriter
from benchflow_testing.fakes import FakeExecutor
from job_records import PLAN, planned, scored_record


class RecordingExecutor(FakeExecutor):
    """The kit's executor, with records that the database accepts."""

    async def run(self, dispatch: Dispatch, on_event: Callable[[Event], None]) -> Completion:
        completion = await super().run(dispatch, on_event)
        if completion.status != "scored":
            return completion
        record = scored_record(dispatch)
        return completion.model_copy(update={"record": record.model_dump(mode="json")})


class WaitingJob:
    """`count` rollouts that start, and end when `allow` was called."""

    def __init__(self, directory: Path, count: int, *, do: str = "wait") -> None:
        self.directory = directory
        self.count = count
        self.database = directory / "record.db"
        self.do = do
        self.driver: JobDriver | None = None
        self._writer = JobWriter(self.database, "job")

    async def run(self, backend: WorkerBackend, slots: int) -> Finish:
        """Run the job to its end."""
        schedule = Schedule([VariantPlan("a")])
        for _ in range(self.count):
            schedule.add(0)
        scheduler = Scheduler(schedule, {"slots": slots}, Policy(pauses=(0.1,)))
        async with self._writer as writer:
            await writer.begin(PLAN, planned(self.count), now=1.0)
            self.driver = JobDriver(scheduler, backend, self, self._dispatch, end_of)
            return await self.driver.run()

    async def start(self, dispatch: Dispatch) -> None:
        await self._writer.start(dispatch)

    async def commit(self, completion: Completion) -> None:
        await self._writer.commit(Commit(completion))

    async def resolve(self, index: int, state: SlotState) -> None:
        await self._writer.resolve([index], "failed" if state == SlotState.FAILED else "completed")

    async def pause(self, latch: Latch, reason: str) -> None:
        raise AssertionError(f"the job was paused: {latch} {reason}")

    def allow(self, *indexes: int, attempts: int = 9) -> None:
        """Let all rollouts of slots end, or all of them."""
        for index in indexes or range(self.count):
            for attempt in range(1, attempts + 1):
                (self.directory / f"r{index}-{attempt}.go").touch()

    def running(self) -> dict[str, int]:
        """Return the processes of rollouts that have started, by rollout."""
        started = self.directory.glob("*.started")
        return {path.stem: int(text) for path in started if (text := path.read_text())}

    async def until_running(self, count: int) -> dict[str, int]:
        """Wait until so many rollouts have started."""
        return await self.until(self.running, lambda running: len(running) >= count)

    async def until(self, read: Callable[[], Any], is_enough: Callable[[Any], bool]) -> Any:
        """Wait until what `read` returns is enough."""
        async with asyncio.timeout(60):
            while True:
                value = read()
                if is_enough(value):
                    return value
                await asyncio.sleep(0.05)

    def attempts(self) -> list[AttemptRow]:
        """Return the attempts of the record."""
        with JobReader(self.database) as reader:
            return list(reader.attempts())

    def check(self) -> list[AttemptRow]:
        """Require that each slot has one score that counts, and return the attempts."""
        with JobReader(self.database) as reader:
            assert reader.check_integrity() == []
            assert reader.contradictions() == []
            assert {slot.status for slot in reader.slots()} == {"completed"}
        attempts = self.attempts()
        counted = [each for each in attempts if each.counted]
        assert sorted(each.index for each in counted) == list(range(self.count))
        assert {each.status for each in counted} == {"scored"}
        return attempts

    def _dispatch(self, index: int, attempt: int) -> Dispatch:
        return Dispatch(
            job="job",
            index=index,
            slot=planned(1, index)[0].name,
            attempt=attempt,
            epoch=1,
            rollout=f"r{index}-{attempt}",
            payload={"do": self.do, "at": str(self.directory)},
        )
