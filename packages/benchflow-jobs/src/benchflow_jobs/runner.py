"""Runs a job: every slot once, some at a time, resumable."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchflow_contracts import (
    BenchFlowError,
    Event,
    RolloutIdentity,
    SandboxProvider,
)
from benchflow_engine.planes import open_provider
from benchflow_engine.preflight import check_agent, check_endpoint
from benchflow_engine.rollout import run_in
from benchflow_store import (
    RolloutRecord,
    latest_records,
    new_rollout_id,
    read_records,
    write_result,
)

from .executor import may_pass
from .hold import held, new_directory
from .options import JobOptions, Planned, Slot
from .plan import JobPlan, settle_plan
from .report import JobReport, write_report

_PAUSES = (2.0, 10.0, 30.0)
"""Seconds before a rollout is tried again: an engine that was restarted is back by then."""


class JobListener(Protocol):
    """Follows a job. Callbacks run on the event loop and must not block."""

    def planned(self, job: str, slots: list[Slot], done: int) -> None:
        """The job called `job` is about to run; `done` slots were finished by an earlier run."""
        ...

    def started(self, slot: Slot) -> Callable[[Event], None]:
        """A rollout starts, maybe once more; return the receiver of its events."""
        ...

    def finished(self, slot: Slot, record: RolloutRecord) -> None:
        """A rollout is over and on disk."""
        ...


async def run_job(options: JobOptions, *, listener: JobListener | None = None) -> JobReport:
    """Run every planned rollout and write the job's summary.

    A job directory that exists is resumed: slots that were scored are kept, the
    others run again beside the evidence of their failure, and so does at once one whose
    sandbox, or the one that graded it, failed in a way that passes, `options.retries` times.
    One bad rollout never ends the job, and neither does a task that cannot be run here: the
    report names it with its reasons. An `AccountError` stops the job: the running rollouts end,
    no other one starts, and `JobReport.stopped` says why. On cancellation the running rollouts
    are torn down, the summary of the finished rollouts is written, and the cancellation is raised
    again.

    Raises:
        BenchFlowError: Nothing could be started: a bad task, option or provider, a model endpoint
            that does not answer, or a job that another process runs.
    """
    planned = options.plan()
    check_agent(options.run)
    name = options.job_name
    named = options.jobs_dir / name if name else None
    if named is None or not _finished(named, planned):
        await check_endpoint(options.run)
    directory = named or new_directory(options.jobs_dir)
    with held(directory):
        settle_plan(directory, JobPlan.of(planned, options))
        return await _run_held(options, planned, directory, listener)


def _finished(directory: Path, planned: Planned) -> bool:
    latest = latest_records(directory)
    return all(slot.id in latest and latest[slot.id].is_final for slot in planned.slots)


async def _run_held(
    options: JobOptions, planned: Planned, directory: Path, listener: JobListener | None
) -> JobReport:
    slots = list(planned.slots)
    done = {key for key, record in latest_records(directory).items() if record.is_final}
    todo = [slot for slot in slots if slot.id not in done]
    if listener is not None:
        listener.planned(directory.name, slots, len(slots) - len(todo))
    try:
        async with open_provider(options.run) as provider:
            await provider.ready()
            epoch = f"{time.time_ns() // 1_000_000}-{os.getpid()}"
            tried = Counter(record.slot or "" for record in read_records(directory))
            await _Job(options, provider, directory, listener, tried, epoch).run(todo)
    finally:
        report = write_report(directory, [slot.id for slot in slots], planned.refused)
    return report


def _passes(record: RolloutRecord) -> bool:
    """Return whether a rollout without a score may come to one at the next try."""
    return not record.is_final and record.error is not None and may_pass(record.error)


@dataclass(slots=True)
class _Job:
    """One run of a job: by one process, from a start to an end."""

    options: JobOptions
    provider: SandboxProvider
    directory: Path
    listener: JobListener | None
    tried: Counter[str]
    """How often each slot was run to a record."""
    epoch: str
    """Tells this run of the job from those before it, and is greater than theirs."""
    is_stopped: bool = False
    """Whether a rollout failed in a way in which every other rollout would fail."""

    async def run(self, slots: list[Slot]) -> None:
        """Run every slot to its last try, some at a time, until the job is stopped."""
        gate = asyncio.Semaphore(self.options.concurrency)

        async def run_slot(slot: Slot) -> None:
            async with gate:
                if self.is_stopped:
                    return
                record = await self._run_slot(slot)
                if self.listener is not None:
                    self.listener.finished(slot, record)

        async with asyncio.TaskGroup() as group:
            for slot in slots:
                group.create_task(run_slot(slot))

    async def _run_slot(self, slot: Slot) -> RolloutRecord:
        pauses = iter(_PAUSES[: self.options.retries])
        while True:
            receive = self.listener.started(slot) if self.listener is not None else None
            record = await self._try(slot, receive)
            self.tried[slot.id] += 1
            error = record.error
            self.is_stopped |= error is not None and error.stops_job
            pause = next(pauses, None) if _passes(record) and not self.is_stopped else None
            if error is None or pause is None:
                return record
            await asyncio.sleep(max(pause, error.retry_after or 0))

    async def _try(self, slot: Slot, receive: Callable[[Event], None] | None) -> RolloutRecord:
        home = self.directory / new_rollout_id(slot.task.id)
        identity = self._identity(slot)
        try:
            result = await run_in(
                self.provider,
                slot.task,
                self.options.run,
                directory=home,
                subscribers=() if receive is None else (receive,),
                identity=identity,
            )
        except BenchFlowError as error:
            ran = self.options.run.ran_with
            record = RolloutRecord.from_error(home.name, slot.task, ran, error, identity=identity)
            write_result(home, record)
            return record
        return result.record

    def _identity(self, slot: Slot) -> RolloutIdentity:
        return RolloutIdentity(
            scope=self.directory.name,
            slot=slot.id,
            attempt=self.tried[slot.id] + 1,
            epoch=self.epoch,
        )
