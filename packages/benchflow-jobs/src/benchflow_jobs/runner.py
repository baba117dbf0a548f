"""Runs a job: every slot once, some at a time, resumable."""

from collections.abc import Callable, Generator, Mapping
from contextlib import AsyncExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from benchflow_contracts import (
    Dispatch,
    Executor,
    StoreError,
    UpstreamAnswer,
    UsageError,
    WorkerBackend,
)
from benchflow_engine.leftovers import reap_leftovers
from benchflow_store import checkpoint_paths, new_rollout_id, read_groups
from benchflow_store.database import (
    DATABASE_FILE,
    JobReader,
    JobState,
    JobStatus,
    JobWriter,
    Projector,
    RunControl,
    read_job_state,
)

from .adopt import adopt_results
from .attempt_evidence import evidence_of
from .backends import make_backend, worker_limits
from .begin import PlannedJob, plan_of, planned_before, settle_plan
from .budget import Budget, measured_judge
from .control import JobControl, signals_to
from .control_socket import serve_orders
from .driver import JobDriver
from .executor import RESUMES, AttemptModels, EngineExecutor, RolloutInputs, end_of
from .facts import FactsUpdater
from .group_rewards import score_groups
from .heartbeat import beating
from .hold import held, new_directory
from .holding import RolloutHolds
from .job_record import DatabaseRecord, JobListener
from .learner_versions import LearnerVersions
from .local_backend import LocalBackend
from .options import JobOptions
from .planning import (
    JobConfig,
    ResolvedJob,
    finish_plan_files,
    plan_revision,
    policy_of,
    resource_limits,
    variant_plans,
)
from .preflight import Providers, prepare
from .report import JobReport, has_record, make_report, write_report
from .rollout_payload import RolloutPayload
from .scheduling import Finish, Latch, ModelLimits, Schedule, Scheduler, SlotState

_STATES = {"completed": SlotState.COMPLETED, "skipped_pruned": SlotState.PRUNED}


@dataclass(frozen=True, slots=True)
class Followers:
    """Those who want to know what happens in a job."""

    listener: JobListener | None = None
    interrupts: Callable[[str], None] | None = None
    """Gets a sentence for people when a signal arrives. Without it, signals are not handled."""
    wrap: Callable[[Executor], Executor] | None = None
    """Returns the executor of local attempts, for example one that waits for a shared slot."""
    models: AttemptModels | None = None
    """Chooses the model endpoint of each local attempt. The endpoints of the plan are not probed
    then."""


async def run_job(
    job: JobConfig | JobOptions,
    *,
    listener: JobListener | None = None,
    interrupts: Callable[[str], None] | None = None,
    wrap: Callable[[Executor], Executor] | None = None,
    models: AttemptModels | None = None,
) -> JobReport:
    """Run every planned rollout and write the job's summary.

    A job directory that exists is resumed: slots that were scored are kept, the others run again
    beside the evidence of their failure. A rollout whose sandbox, or the one that graded it,
    failed in a way that passes runs again at once, `retry.retries` times. One bad rollout never
    ends the job, and neither does a task that cannot be run here: the report names it with its
    reasons. `JobReport.stopped` says why slots are left: an `AccountError`, one permanent error
    many times running, a record that cannot be written, or an interrupt. On cancellation the
    running rollouts are torn down, the summary of the finished rollouts is written, and the
    cancellation is raised again.

    With `interrupts`, SIGINT drains the job, and a second SIGINT, SIGTERM or SIGHUP ends what
    runs; `interrupts` gets a sentence for people. `wrap` and `models` are as in
    `Followers`.

    Raises:
        BenchFlowError: Nothing was started: a bad task, option or provider, a model endpoint that
            does not answer, too little disk, memory or open files, or a job that another process
            runs. Several problems are one `PreflightError`.
    """
    planned = plan_of(job)
    settings = planned.plan.config.job
    named = settings.jobs_dir / settings.name if settings.name else None
    async with AsyncExitStack() as blocks:
        providers = Providers(blocks)
        await prepare(planned, named, providers, probes=models is None)
        directory = named or new_directory(settings.jobs_dir)
        with held(directory):
            planned = settle_plan(directory, planned)
            followers = Followers(listener, interrupts, wrap, models)
            return await _run_held(planned, directory, providers, followers)


async def resume_job(
    directory: Path,
    *,
    trust: bool = False,
    listener: JobListener | None = None,
    interrupts: Callable[[str], None] | None = None,
    wrap: Callable[[Executor], Executor] | None = None,
    models: AttemptModels | None = None,
) -> JobReport:
    """Continue the job of a directory as it was planned, as `run_job` does.

    Raises:
        BenchFlowError: As `run_job`; or the directory has no plan, one of another user that is not
            trusted, or one whose tasks have changed.
    """
    planned = planned_before(directory, trust=trust)
    async with AsyncExitStack() as blocks:
        providers = Providers(blocks)
        await prepare(planned, directory, providers, probes=models is None)
        with held(directory):
            followers = Followers(listener, interrupts, wrap, models)
            return await _run_held(planned, directory, providers, followers)


async def _run_held(
    planned: PlannedJob, directory: Path, providers: Providers, followers: Followers
) -> JobReport:
    finish_plan_files(directory, planned.plan)
    async with JobWriter(directory / DATABASE_FILE, directory.name) as writer:
        state = await open_record(writer, planned.plan, directory)
        evidence = evidence_of(planned.plan.config.evidence, directory)
        if await adopt_results(writer, state, directory, evidence):
            state = read_job_state(directory / DATABASE_FILE)
        run = _Run(planned, directory, writer, state, providers, followers)
        with _raising_one_error():
            return await run.to_its_end()


@contextmanager
def _raising_one_error() -> Generator[None]:
    """Raise the only error of a group as it is: what runs beside a job needs groups of tasks."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise _only_error(group) from None


def _only_error(error: BaseException) -> BaseException:
    if not isinstance(error, BaseExceptionGroup):
        return error
    group = cast("BaseExceptionGroup[BaseException]", error)
    return _only_error(group.exceptions[0]) if len(group.exceptions) == 1 else group


async def open_record(writer: JobWriter, plan: ResolvedJob, directory: Path) -> JobState:
    """Create the record of a job, or take it over with a greater epoch.

    A driver that is killed while it extends a job has written the plan, and not its record.

    Raises:
        UsageError: The record is of another plan.
    """
    if not has_record(directory):
        return await writer.begin(plan_revision(plan), plan.slots)
    state = await writer.begin()
    if state.plan.config_digest not in {revision.digest for revision in plan.revisions}:
        raise UsageError(
            f"the record of job {directory.name!r} belongs to another plan",
            hint="restore job.json and plan.json, or start a new job",
        )
    if len(state.slots) == len(plan.slots):
        return state
    await writer.extend(plan_revision(plan), plan.slots[len(state.slots) :])
    return read_job_state(directory / DATABASE_FILE)


@dataclass(slots=True)
class _Run:
    """One run of a job: by one process, from a start to an end."""

    job: PlannedJob
    directory: Path
    writer: JobWriter
    state: JobState
    providers: Providers
    followers: Followers
    cut_short: dict[int, str] = field(default_factory=dict[int, str])
    """The rollout of the last attempt, by slot, if it did not end."""
    finish: Finish | None = None
    """How the driver ended; `None` before, and after a cancellation."""
    control: JobControl | None = None
    learners: LearnerVersions | None = None
    """The learner stores of a sequential job."""

    async def to_its_end(self) -> JobReport:
        """Run what is left, and write the summary, also on cancellation."""
        listener, slots = self.followers.listener, self.job.plan.slots
        budget = self._read_earlier(listener)
        facts = FactsUpdater(
            Projector(self.directory, self.directory / DATABASE_FILE, epoch=self.writer.epoch)
        )
        record = DatabaseRecord(
            self.writer, self.directory, slots, listener, facts.note_change, budget
        )
        record.evidence = evidence_of(self.job.plan.config.evidence, self.directory)
        if self.learners is not None:
            record.on_record = self.learners.note
        try:
            async with AsyncExitStack() as blocks:
                # The plan in the directory may have more variants than the caller's.
                await self.providers.open_for(self.job)
                await self._clear_up()
                await record.set_status("running")
                await facts.update()
                await blocks.enter_async_context(facts.running())
                try:
                    self.finish = await self._drive(record)
                    if self.finish.status == "completed":
                        await score_groups(self._newest, self.directory, budget)
                finally:
                    with self._may_be_full():
                        await record.set_status(self._status(), stopped=self._stopped())
                    with self._may_be_full():
                        await facts.update()
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
        report = make_report(self.directory, self.job.plan.refused, control)
        with self._may_be_full():
            write_report(report)
        return report

    async def _clear_up(self) -> None:
        """Delete what earlier runs left. A failure is reported, and does not stop the job."""
        if self.state.epoch == 1:
            return
        place = str(self.directory.resolve())
        for provider in self.providers.opened:
            report = await reap_leftovers(
                provider, self.directory.name, str(self.state.epoch), job_dir=place
            )
            is_news = report.sandboxes or report.directories or report.active or report.errors
            if is_news and self.followers.interrupts is not None:
                self.followers.interrupts(str(report))

    def _read_earlier(self, listener: JobListener | None) -> Budget:
        """Read what earlier runs of the job left. Return the budget with what they used."""
        limits = self.job.plan.config.budget
        budget = Budget(limits.cost_usd, limits.tokens)
        with JobReader(self.directory / DATABASE_FILE) as reader:
            budget.add(reader.measured_totals())
            for group in read_groups(self.directory):
                budget.add(measured_judge(group.judge))
            self.cut_short = reader.cut_short()
            if self.job.plan.config.design.is_sequential:
                self.learners = LearnerVersions(self.job.plan, self.directory, reader.slots())
            if listener is not None:
                listener.planned(self.directory.name, self.job.plan.slots, reader.rewards())
        return budget

    async def _drive(self, record: DatabaseRecord) -> Finish:
        config = self.job.plan.config
        is_local = config.backend.is_local
        # Workers elsewhere report what they have when they join.
        limits = resource_limits(config) if is_local else {"slots": 0, **worker_limits(config)}
        scheduler = Scheduler(
            await self._schedule(), limits, policy_of(config), dict(config.concurrency.endpoints)
        )
        endpoints = ModelLimits(scheduler, set(config.concurrency.endpoints))

        def on_answer(answer: UpstreamAnswer) -> None:
            driver.tell(lambda _scheduler, now: endpoints.note(answer, now))

        def on_capacity(capacity: Mapping[str, int]) -> None:
            control.note_capacity(capacity)

        if is_local:
            holds = RolloutHolds(self._scopes)
            engine = EngineExecutor(
                self.directory,
                self._inputs,
                on_answer=on_answer,
                holds=holds,
                models=self.followers.models,
            )
            wrap = self.followers.wrap
            executor: Executor = engine if wrap is None else wrap(engine)
            backend: WorkerBackend = LocalBackend(executor, dict(limits), on_event=record.receive)
        else:
            holds = RolloutHolds(self._scopes, "the workers of this job cannot hold a rollout")
            backend = make_backend(self.job.plan, self.directory, on_capacity)
        meaning = partial(end_of, boundaries=config.retry.boundaries)
        driver = JobDriver(scheduler, backend, record, self._dispatch, meaning)
        control = self.control = JobControl(
            driver,
            record,
            self.job,
            self.directory,
            self.providers,
            endpoints.fixed,
            holds,
            self.cut_short,
        )
        record.on_spent, record.on_pause = control.spend, control.note_pause
        record.running_cost = self.providers.cost_usd
        record.running_count = lambda: scheduler.running
        endpoints.on_change = control.note_model_limit
        control.report_limits()
        say = self.followers.interrupts
        with (
            nullcontext() if say is None else signals_to(control, say),
            control.limited_to(config.budget.wall_sec),
        ):
            async with (
                serve_orders(self.directory, control.receive),
                beating(self.directory, self.writer.epoch, partial(_counts, driver, record)),
            ):
                return await driver.run()

    def _scopes(self, index: int) -> set[Latch]:
        """Return the scopes that a pause of a slot may have."""
        plan = self._newest.plan
        variant = plan.variants[plan.slots.place(index)[0]]
        scopes = {Latch(), Latch("variant", variant.id)}
        url = variant.run.model.base_url
        return scopes if url is None else scopes | {Latch("endpoint", url)}

    @property
    def _newest(self) -> PlannedJob:
        """The job with what was added since its start."""
        return self.job if self.control is None else self.control.job

    def _inputs(self, dispatch: Dispatch) -> RolloutInputs:
        job = self._newest
        variant, _, _ = job.plan.slots.place(dispatch.index)
        run, learner = job.plan.run_config(dispatch.index), None
        if self.learners is not None:
            learner = self.learners.open(job.plan.slots[dispatch.index].variant, dispatch.rollout)
        return RolloutInputs(self.providers.of(variant), job.task(dispatch.index), run, learner)

    async def _schedule(self) -> Schedule:
        """Return the schedule. A failed slot runs again if it has an attempt left."""
        plan = self.job.plan
        cap = plan.config.retry.max_attempts
        with JobReader(self.directory / DATABASE_FILE) as reader:
            cut_short = reader.cut_short_counts()
        failed = [each for each in self.state.slots if each.status == "failed"]
        again = [i.index for i in failed if i.attempts - cut_short.get(i.index, 0) < cap]
        if again:
            await self.writer.requeue(again)
        schedule = Schedule(variant_plans(plan))
        for each, (variant, _, _) in zip(self.state.slots, plan.slots.places(), strict=True):
            state = _STATES.get(each.status, SlotState.WAITING)
            cut = cut_short.get(each.index, 0)
            schedule.add(variant, attempts=each.attempts, cut_short=cut, state=state)
        return schedule

    def _dispatch(self, index: int, attempt: int) -> Dispatch:
        job = self._newest
        slot = job.plan.slots[index]
        return Dispatch(
            job=self.directory.name,
            index=index,
            slot=slot.name,
            attempt=attempt,
            epoch=self.writer.epoch,
            rollout=new_rollout_id(slot.task),
            payload=self._payload(job, index),
            needs=self._needs(job, index),
        )

    def _needs(self, job: PlannedJob, index: int) -> Mapping[str, int]:
        assert self.control is not None
        schedule = self.control.driver.scheduler.schedule
        return schedule.variants[job.plan.slots.place(index)[0]].needs

    def _payload(self, job: PlannedJob, index: int) -> dict[str, Any]:
        config = job.plan.config
        rollout = self._cut_short(job, index)
        if config.backend.is_local:
            return {} if rollout is None else {RESUMES: rollout}
        # Without the job's directory, a worker does not have the earlier attempt.
        earlier = rollout if config.evidence.url is None else None
        return RolloutPayload.dump(job, index, earlier)

    def _cut_short(self, job: PlannedJob, index: int) -> str | None:
        """Return the rollout whose rest is run, if the last attempt was cut short and kept it."""
        rollout = self.cut_short.pop(index, None)
        if self.learners is not None:
            return None  # Its checkpoint may have an older version of the learner store.
        variant = job.plan.variants[job.plan.slots.place(index)[0]]
        if rollout is None:
            return None
        # A pause saves a rollout whatever `keep` is.
        has_checkpoint = any(checkpoint_paths(self.directory / rollout))
        return rollout if variant.run.keep.which != "none" or has_checkpoint else None

    def _status(self) -> JobStatus:
        if self.finish is not None and self.finish.status == "completed":
            return "completed"
        if self.finish is None or self.control is None:
            return "interrupted"
        return "paused" if self.control.interrupted is None else self.control.final

    def _stopped(self) -> str | None:
        if self.finish is None:
            return "it was cut short"
        return self.finish.reason if self._is_stopped else None


def _counts(driver: JobDriver, record: DatabaseRecord) -> tuple[Mapping[str, int], tuple[str, ...]]:
    """Return what a heartbeat says of the slots. Rollouts that run cost money all the time."""
    record.check_budget()
    schedule, queued = driver.scheduler.schedule, driver.queued
    counts = {state.name.lower(): schedule.count(state) for state in SlotState}
    counts["running"] -= len(queued)
    return {**counts, "queued": len(queued)}, tuple(record.slots[index].name for index in queued)
