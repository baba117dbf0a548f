"""Runs a job: every slot once, some at a time, resumable."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from benchflow_contracts import (
    BenchFlowError,
    Event,
    SandboxProvider,
    StoreError,
)

from benchflow.planes import check_agent, open_provider
from benchflow.records import RolloutRecord, new_job_name, new_rollout_id, write_text
from benchflow.rollout import run_in

from .options import JobOptions, Slot
from .plan import JobPlan, settle_plan
from .report import JobReport, latest_records, write_report


class JobListener(Protocol):
    """Follows a job. Callbacks run on the event loop and must not block."""

    def planned(self, slots: list[Slot], done: int) -> None:
        """The job is about to run; `done` slots were finished by an earlier run."""
        ...

    def started(self, slot: Slot) -> Callable[[Event], None]:
        """A rollout starts; return the receiver of its events."""
        ...

    def finished(self, slot: Slot, record: RolloutRecord) -> None:
        """A rollout is over and on disk."""
        ...


async def run_job(options: JobOptions, *, listener: JobListener | None = None) -> JobReport:
    """Run every planned rollout and write the job's summary.

    A job directory that exists is resumed: slots that were scored are kept, the
    others run again beside the evidence of their failure. One bad rollout never
    ends the job. On cancellation the running rollouts are torn down,
    the summary of what is finished is written, and the cancellation goes on.

    Raises:
        BenchFlowError: Nothing could be started: a bad task, option or provider.
    """
    slots = options.plan()
    check_agent(options.run)
    directory = options.jobs_dir / (options.job_name or new_job_name())
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make job directory {str(directory)!r}: {error}") from error
    settle_plan(directory, JobPlan.of(slots, options))
    done = {key for key, record in latest_records(directory).items() if record.final}
    todo = [slot for slot in slots if slot.id not in done]
    if listener is not None:
        listener.planned(slots, len(slots) - len(todo))
    try:
        async with open_provider(options.run) as provider:
            await provider.capabilities()
            await _run_all(todo, options, provider, directory, listener)
    finally:
        report = write_report(directory, [slot.id for slot in slots])
    return report


async def _run_all(
    todo: list[Slot],
    options: JobOptions,
    provider: SandboxProvider,
    directory: Path,
    listener: JobListener | None,
) -> None:
    gate = asyncio.Semaphore(options.concurrency)

    async def run_slot(slot: Slot) -> None:
        async with gate:
            receive = listener.started(slot) if listener is not None else None
            record = await _run_one(slot, options, provider, directory, receive)
            if listener is not None:
                listener.finished(slot, record)

    async with asyncio.TaskGroup() as group:
        for slot in todo:
            group.create_task(run_slot(slot))


async def _run_one(
    slot: Slot,
    options: JobOptions,
    provider: SandboxProvider,
    directory: Path,
    receive: Callable[[Event], None] | None,
) -> RolloutRecord:
    home = directory / new_rollout_id(slot.task.id)
    try:
        result = await run_in(
            provider,
            slot.task,
            options.run,
            directory=home,
            subscribers=() if receive is None else (receive,),
            slot=slot.id,
        )
    except BenchFlowError as error:
        record = RolloutRecord.refused(home.name, slot.task, options.run, error, slot=slot.id)
        write_text(home / "result.json", record.model_dump_json(indent=2) + "\n")
        return record
    return result.record
