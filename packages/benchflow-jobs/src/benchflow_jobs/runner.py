"""Runs a job: every slot once, some at a time, resumable."""

from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from benchflow_contracts import Dispatch, SandboxProvider, StoreError
from benchflow_engine.planes import open_provider
from benchflow_engine.preflight import check_agent, check_endpoint
from benchflow_store import latest_records, new_rollout_id
from benchflow_store.database import (
    DATABASE_FILE,
    JobState,
    JobStatus,
    JobWriter,
    PlannedSlot,
    PlanRevision,
    Projector,
    RunControl,
    read_job_state,
)

from .adopt import adopt_results
from .control import JobControl, signals_to
from .driver import JobDriver
from .executor import EngineExecutor, end_of
from .facts import FactsUpdater
from .hold import held, new_directory
from .job_record import DatabaseRecord, JobListener
from .local_backend import LocalBackend
from .options import JobOptions, Planned
from .plan import JobPlan, settle_plan
from .report import JobReport, has_record, make_report, write_report
from .scheduling import Finish, Policy, Schedule, Scheduler, SlotState, VariantPlan

_PAUSES = (2.0, 10.0, 30.0)
"""Seconds before a rollout is tried again: an engine that was restarted is back by then."""
_STATES = {"completed": SlotState.COMPLETED, "skipped_pruned": SlotState.PRUNED}


async def run_job(
    options: JobOptions,
    *,
    listener: JobListener | None = None,
    interrupts: Callable[[str], None] | None = None,
) -> JobReport:
    """Run every planned rollout and write the job's summary.

    A job directory that exists is resumed: slots that were scored are kept, the others run again
    beside the evidence of their failure. A rollout whose sandbox, or the one that graded it,
    failed in a way that passes runs again at once, `options.retries` times. One bad rollout never
    ends the job, and neither does a task that cannot be run here: the report names it with its
    reasons. `JobReport.stopped` says why slots are left: an `AccountError`, one permanent error
    many times running, a record that cannot be written, or an interrupt. On cancellation the
    running rollouts are torn down, the summary of the finished rollouts is written, and the
    cancellation is raised again.

    With `interrupts`, SIGINT drains the job, and a second SIGINT, SIGTERM or SIGHUP ends what
    runs; `interrupts` gets a sentence for people.

    Raises:
        BenchFlowError: Nothing could be started: a bad task, option or provider, a model endpoint
            that does not answer, or a job that another process runs.
    """
    planned = options.plan()
    check_agent(options.run)
    name = options.job_name
    named = options.jobs_dir / name if name else None
    if named is None or not _is_finished(named, planned):
        await check_endpoint(options.run)
    directory = named or new_directory(options.jobs_dir)
    with held(directory):
        plan = settle_plan(directory, JobPlan.of(planned, options))
        async with JobWriter(directory / DATABASE_FILE, directory.name) as writer:
            state = await _begin(writer, planned, plan, options)
            if await adopt_results(writer, state, directory):
                state = read_job_state(directory / DATABASE_FILE)
            run = _Run(options, planned, directory, writer, state, listener, interrupts)
            return await run.to_its_end()


def _is_finished(directory: Path, planned: Planned) -> bool:
    if has_record(directory):
        state = read_job_state(directory / DATABASE_FILE)
        return all(each.status == "completed" for each in state.slots)
    latest = latest_records(directory)
    return all(slot.id in latest and latest[slot.id].is_final for slot in planned.slots)


async def _begin(
    writer: JobWriter, planned: Planned, plan: JobPlan, options: JobOptions
) -> JobState:
    """Create the record of the job, or take it over with a greater epoch."""
    variant = variant_name(options)
    revision = PlanRevision(
        config_digest=sha256(plan.model_dump_json().encode()).hexdigest(),
        design="regression",
        variants={variant: plan.run},
    )
    slots = [
        PlannedSlot(slot.id, variant, slot.task.id, slot.repeat, slot.task.digest)
        for slot in planned.slots
    ]
    return await writer.begin(revision, slots)


def variant_name(options: JobOptions) -> str:
    """Return the name of the only variant of a job: `AGENT` or `AGENT/MODEL`."""
    ran = options.run.ran_with
    return f"{ran.agent}/{ran.model}" if ran.model else ran.agent


@dataclass(slots=True)
class _Run:
    """One run of a job: by one process, from a start to an end."""

    options: JobOptions
    planned: Planned
    directory: Path
    writer: JobWriter
    state: JobState
    listener: JobListener | None
    interrupts: Callable[[str], None] | None
    finish: Finish | None = None
    """How the driver ended; `None` before, and after a cancellation."""
    control: JobControl | None = None

    async def to_its_end(self) -> JobReport:
        """Run what is left, and write the summary, also on cancellation."""
        done = sum(each.status == "completed" for each in self.state.slots)
        if self.listener is not None:
            self.listener.planned(self.directory.name, self.planned.slots, done)
        facts = FactsUpdater(Projector(self.directory, self.directory / DATABASE_FILE))
        record = DatabaseRecord(
            self.writer, self.directory, self.planned.slots, self.listener, facts.note_change
        )
        try:
            async with AsyncExitStack() as blocks:
                provider = await blocks.enter_async_context(open_provider(self.options.run))
                await provider.ready()
                await blocks.enter_async_context(facts.running())
                await record.set_status("running")
                try:
                    self.finish = await self._drive(provider, record)
                finally:
                    with self._may_be_full():
                        await record.set_status(self._status(), stopped=self._stopped())
                    with self._may_be_full():
                        await facts.finish()
        finally:
            report = self._report()
        return report

    @contextmanager
    def _may_be_full(self) -> Generator[None]:
        """Ignore a failed write of a job that stopped. The record has what was acknowledged."""
        try:
            yield
        except StoreError:
            if not self._is_stopped:
                raise

    @property
    def _is_stopped(self) -> bool:
        return self.finish is not None and self.finish.status != "completed"

    def _report(self) -> JobReport:
        control = RunControl(status=self._status(), stopped=self._stopped())
        report = make_report(self.directory, self.planned.refused, control)
        with self._may_be_full():
            write_report(report)
        return report

    async def _drive(self, provider: SandboxProvider, record: DatabaseRecord) -> Finish:
        slots, run = self.planned.slots, self.options.run
        executor = EngineExecutor(
            provider, self.directory, lambda dispatch: (slots[dispatch.index].task, run)
        )
        limits = {"slots": self.options.concurrency}
        driver = JobDriver(
            Scheduler(await self._schedule(), limits, self._policy()),
            LocalBackend(executor, limits, on_event=record.receive),
            record,
            self._dispatch,
            end_of,
        )
        control = self.control = JobControl(driver)
        with nullcontext() if self.interrupts is None else signals_to(control, self.interrupts):
            return await driver.run()

    async def _schedule(self) -> Schedule:
        """Return the schedule. A failed slot runs again if it has an attempt left."""
        cap = self._policy().max_attempts
        failed = [each for each in self.state.slots if each.status == "failed"]
        again = [each.index for each in failed if each.attempts < cap]
        if again:
            await self.writer.requeue(again)
        schedule = Schedule([VariantPlan(variant_name(self.options))])
        for each in self.state.slots:
            state = _STATES.get(each.status, SlotState.WAITING)
            schedule.add(0, attempts=each.attempts, state=state)
        return schedule

    def _policy(self) -> Policy:
        return Policy(retries=self.options.retries, pauses=_PAUSES)

    def _dispatch(self, index: int, attempt: int) -> Dispatch:
        slot = self.planned.slots[index]
        return Dispatch(
            job=self.directory.name,
            index=index,
            slot=slot.id,
            attempt=attempt,
            epoch=self.writer.epoch,
            rollout=new_rollout_id(slot.task.id),
        )

    def _status(self) -> JobStatus:
        if self.finish is not None and self.finish.status == "completed":
            return "completed"
        is_held = self.control is not None and self.control.interrupted is None
        return "paused" if self.finish is not None and is_held else "interrupted"

    def _stopped(self) -> str | None:
        if self.finish is None:
            return "it was cut short"
        return self.finish.reason if self._is_stopped else None
