"""The jobs of the service. The engine of `benchflow_jobs` runs each in its own directory."""

import asyncio
import hashlib
import logging
import re
import shutil
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast

from benchflow_contracts import (
    BenchFlowError,
    Executor,
    NodeError,
    RareModel,
    StoreError,
    UsageError,
)
from benchflow_jobs import JobConfig, JobView, job_view, resume_job, run_job
from benchflow_jobs.control_socket import JobNotRunningError, send_order
from benchflow_jobs.orders import Cancel, Drain, Order, Pause, Resume
from benchflow_kernel.faults import node_error
from benchflow_serve_client.job_models import (
    JobEvent,
    JobPause,
    JobRequest,
    JobState,
    ServedJob,
    SlotPage,
)
from benchflow_store.database import DATABASE_FILE

from .job_events import JobEventListener, JobEventLog, read_page
from .job_policies import PolicyAttempts
from .job_requests import job_config
from .parts import TaskOwner
from .policies import Policies
from .problems import (
    ConflictError,
    NotFoundError,
    QueueFullError,
    RequestRefusedError,
    ServiceClosedError,
)
from .settings import ServeSettings
from .slots import SlotPool, SlottedExecutor
from .store import IdempotentRequest, ServiceStore

_RETRY_SEC: Final = 5.0
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_logger = logging.getLogger(__name__)


class SavedJob(RareModel):
    """A job as its row in the database has it."""

    name: str
    digest: str
    """The sha256 of the request."""
    tables: Mapping[str, Any]
    policy: str | None = None
    created_at: float
    is_wanted: bool = True
    """Whether a restarted service continues it."""
    error: NodeError | None = None


@dataclass(slots=True, eq=False)
class _Job:
    saved: SavedJob
    log: JobEventLog
    task: asyncio.Task[None] | None = None
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when its rollouts start, and when it has ended."""
    failure: BenchFlowError | None = None
    is_draining: bool = False


class JobBoard:
    """The jobs of a service, by name. A job that a killed service ran continues at its start."""

    def __init__(self, settings: ServeSettings, slots: SlotPool, policies: Policies) -> None:
        self._settings = settings
        self._policies = policies
        self._slots = slots
        self._home = settings.directory / "jobs"
        self._jobs: dict[str, _Job] = {}
        self._store: ServiceStore | None = None
        self._group: asyncio.TaskGroup | None = None
        self._is_closed = False
        self._is_stopping = False

    @asynccontextmanager
    async def running(self, store: ServiceStore) -> AsyncGenerator[None]:
        """Run jobs in the block, also those of an earlier service. At its end, what runs is cut."""
        self._store = store
        self._home.mkdir(exist_ok=True, mode=0o700)
        for body in store.jobs():
            saved = SavedJob.model_validate_json(body)
            self._jobs[saved.name] = _Job(saved, JobEventLog(store, saved.name))
        async with TaskOwner() as group:
            self._group = group
            for job in self._jobs.values():
                if job.saved.is_wanted and job.saved.error is None and not self._is_over(job):
                    self._start(job)
                elif not job.log.is_ended:
                    group.create_task(self._record_end(job))
            try:
                yield
            finally:
                self._is_closed = True
                for job in self._jobs.values():
                    if job.task is not None:
                        job.task.cancel()

    async def submit(self, request: JobRequest, *, key: str | None = None) -> ServedJob:
        """Plan a job and start it. Return when its first rollouts may start.

        With `key`, the same request again returns the same job.

        Raises:
            RequestRefusedError: The request is wrong, or sets what the operator decides.
            NotFoundError: The policy is not registered.
            ConflictError: Another request had the key, or another job the name.
            QueueFullError: As many jobs run as the operator allows.
            BenchFlowError: The job cannot run here.
        """
        digest = hashlib.sha256(request.model_dump_json(exclude_none=True).encode()).hexdigest()
        name = self._name_of(request, digest, key)
        if (job := self._jobs.get(name)) is None:
            config = await self._config(request.tables, name, request.policy)
            # Another request may have come while the job was planned.
            job = self._jobs.get(name) or self._add(name, digest, request, config, key)
        if job.saved.digest != digest:
            raise ConflictError(
                f"job {name!r} was submitted by another request",
                hint="give the job another name, or the request another Idempotency-Key",
            )
        await job.begun.wait()
        if job.failure is not None:
            raise job.failure
        return self.status(name)

    def status(self, name: str) -> ServedJob:
        """Return a job.

        Raises:
            NotFoundError: No job has the name.
        """
        return self._status(self._find(name))

    def statuses(self) -> Sequence[ServedJob]:
        """Return all jobs, the oldest first."""
        return [self._status(job) for job in self._jobs.values()]

    async def cancel(self, name: str) -> ServedJob:
        """End what a job runs, and then the job. An ended one stays as it is.

        Raises:
            NotFoundError: No job has the name.
        """
        job = self._find(name)
        self._save(job, is_wanted=False)
        if (task := job.task) is not None:
            try:
                await self._order(job, Cancel(by="a client of the service"))
            except JobNotRunningError:
                task.cancel()  # It is being prepared.
            await asyncio.wait([task])
        return self._status(job)

    async def pause(self, name: str, request: JobPause) -> ServedJob:
        """Start nothing more of a job.

        Raises:
            NotFoundError: No job has the name.
            ConflictError: The job does not run.
        """
        job = self._find(name)
        order = Pause(
            by="a client of the service",
            reason=request.reason,
            now=request.do == "freeze",
            keep=request.do == "save",
        )
        await self._order(job, order)
        job.log.add("paused", reason=request.reason or None)
        return self._status(job)

    async def resume(self, name: str) -> ServedJob:
        """End the pause of a job, or continue a job that was stopped. Idempotent.

        Raises:
            NotFoundError: No job has the name.
            QueueFullError: As many jobs run as the operator allows.
        """
        job = self._find(name)
        if job.task is not None:
            await self._order(job, Resume(by="a client of the service"))
            job.log.add("resumed")
        elif not self._is_over(job):
            self._check_room()
            self._save(job, is_wanted=True, error=None)
            self._start(job)
            await job.begun.wait()
            if job.failure is not None:
                raise job.failure
        return self._status(job)

    def results(self, name: str, first: int, limit: int) -> SlotPage:
        """Return slots of a job from the index `first` on. Call this in a thread.

        Raises:
            NotFoundError: No job has the name.
            StoreError: The record of the job is damaged.
        """
        return read_page(self._home / self._find(name).saved.name, first, limit)

    def events(
        self, name: str, after: int = 0, beat_sec: float | None = None
    ) -> AsyncGenerator[JobEvent | None]:
        """Return the events of a job after number `after`, until it does not run any more.

        With `beat_sec`, None comes whenever nothing happened for so long.

        Raises:
            NotFoundError: No job has the name.
            ConflictError: The job has no event `after`.
        """
        job = self._find(name)
        return job.log.follow(after, lambda: job.task is None or self._is_stopping, beat_sec)

    def stop_streams(self) -> None:
        """End every stream of events, because the server stops."""
        self._is_stopping = True
        for job in self._jobs.values():
            job.log.wake()

    async def drain(self) -> None:
        """Start nothing more, and wait until what runs has ended. The next start continues."""
        self._is_closed = True
        running = [job for job in self._jobs.values() if job.task is not None]
        for job in running:
            job.is_draining = True
            try:
                await self._order(job, Drain(by="the end of the service"))
            except ConflictError:
                if job.task is not None:
                    job.task.cancel()  # It is being prepared.
        tasks = [job.task for job in running if job.task is not None]
        if tasks:
            await asyncio.wait(tasks)

    def _name_of(self, request: JobRequest, digest: str, key: str | None) -> str:
        """Return the name of a job. One key gives one name, also after a kill of the service."""
        table = request.tables.get("job")
        is_table = isinstance(table, Mapping)
        name = cast("Mapping[str, object]", table).get("name") if is_table else None
        if name is not None:
            if not isinstance(name, str) or _NAME.fullmatch(name) is None:
                raise RequestRefusedError(
                    f"{str(name)[:100]!r} is not the name of a job",
                    hint="use letters, digits, '.', '_' and '-', at most 128",
                    where="tables.job.name",
                )
            return name
        text = f"{time.time_ns()} {digest}" if key is None else f"key {key}"
        return f"job-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def _add(
        self, name: str, digest: str, request: JobRequest, config: JobConfig, key: str | None
    ) -> _Job:
        store = self._require_store()
        self._check_room()
        saved = SavedJob(
            name=name,
            digest=digest,
            tables=request.tables,
            policy=request.policy,
            created_at=time.time(),
        )
        marked = None
        if key is not None:
            if store.find_key(key) is not None:
                raise ConflictError(f"the Idempotency-Key {key!r} was used for another request")
            marked = key, IdempotentRequest(digest, "job", name)
        store.save_job(name, saved.model_dump_json(), marked)
        job = self._jobs[name] = _Job(saved, JobEventLog(store, name))
        self._start(job, config)
        return job

    def _check_room(self) -> None:
        if self._is_closed:
            raise ServiceClosedError("the service stops, and takes no jobs")
        running = sum(job.task is not None for job in self._jobs.values())
        if running >= self._settings.jobs:
            raise QueueFullError(
                f"{running} jobs run, as many as the operator allows", retry_after=_RETRY_SEC
            )

    def _start(self, job: _Job, config: JobConfig | None = None) -> None:
        assert self._group is not None
        job.begun, job.failure = asyncio.Event(), None
        name = f"job {job.saved.name}"
        job.task = self._group.create_task(self._run(job, config), name=name)

    async def _run(self, job: _Job, config: JobConfig | None) -> None:
        directory = self._home / job.saved.name
        had_begun = directory.exists()
        try:
            if job.saved.policy is not None:
                # After a restart, the trainer has to register its policy again.
                await self._policies.wait_for(job.saved.policy)
            await job.log.complete(directory)
            await self._drive(job, config)
            if not job.is_draining:
                # A job that ended by itself does not begin again at each start of the service.
                self._note(job, is_wanted=False)
        except asyncio.CancelledError:
            if self._is_closed or not job.saved.is_wanted:
                return
            raise
        except BenchFlowError as error:
            self._fail(job, error, forget=not had_begun and not job.begun.is_set())
        except Exception as error:
            _logger.exception("job %s", job.saved.name)
            self._fail(job, _JobDefectError(f"{type(error).__name__}: {error}"), forget=False)
        finally:
            if job.saved.name in self._jobs:
                await self._record_end(job)
            job.task = None
            job.begun.set()
            job.log.wake()

    async def _drive(self, job: _Job, config: JobConfig | None) -> None:
        directory, saved = self._home / job.saved.name, job.saved
        listener = JobEventListener(job.log, job.begun)
        models = self._models_of(job, listener)

        def wrap(executor: Executor) -> Executor:
            inner = executor if models is None else models.wrap(executor)
            return SlottedExecutor(inner, self._slots)

        if (directory / "job.json").exists():
            await resume_job(directory, listener=listener, wrap=wrap, models=models)
            return
        if config is None:
            config = await self._config(saved.tables, saved.name, saved.policy)
        await run_job(config, listener=listener, wrap=wrap, models=models)

    async def _config(self, tables: Mapping[str, Any], name: str, policy: str | None) -> JobConfig:
        endpoint = None if policy is None else self._policies.newest(policy)
        return await asyncio.to_thread(job_config, self._settings, tables, name, endpoint)

    def _models_of(self, job: _Job, listener: JobEventListener) -> PolicyAttempts | None:
        if job.saved.policy is None:
            return None
        return PolicyAttempts(
            self._policies,
            job.saved.policy,
            keeps_endpoint=self._settings.config.model.base_url is not None,
            on_swap=listener.swapped,
            on_park_refused=listener.refused_park,
        )

    async def _record_end(self, job: _Job) -> None:
        """Record the end of a job and of its slots. A full disk is tried again at the next start.

        The end of a job that the end of the service cuts is not recorded: the job continues.
        """
        directory = self._home / job.saved.name
        try:
            await job.log.complete(directory)
            if not (self._is_closed and job.saved.is_wanted):
                view = self._view(job)
                state = _state_of(job, view, is_running=False)
                stopped = job.failure or (None if view is None else view.stopped)
                job.log.add("ended", state=state, reason=None if stopped is None else str(stopped))
        except StoreError as error:
            _logger.warning("the end of job %s is not recorded: %s", job.saved.name, error)

    def _fail(self, job: _Job, error: BenchFlowError, *, forget: bool) -> None:
        """Note why a job ended. One that never began is forgotten, so that it can be corrected."""
        job.failure = error
        if not forget:
            self._note(job, error=node_error(error), is_wanted=False)
            return
        self._require_store().delete_job(job.saved.name)
        del self._jobs[job.saved.name]
        shutil.rmtree(self._home / job.saved.name, ignore_errors=True)

    def _find(self, name: str) -> _Job:
        try:
            return self._jobs[name]
        except KeyError:
            raise NotFoundError(
                f"the service has no job {name!r}", hint="GET /v1/jobs lists them"
            ) from None

    def _note(self, job: _Job, **fields: Any) -> None:  # noqa: ANN401 - fields of SavedJob
        """Record how a job ended. If the disk is full, the next start finds it in its record."""
        try:
            self._save(job, **fields)
        except StoreError as error:
            _logger.warning("the state of job %s is not recorded: %s", job.saved.name, error)

    def _save(self, job: _Job, **fields: Any) -> None:  # noqa: ANN401 - fields of SavedJob
        job.saved = job.saved.model_copy(update=fields)
        self._require_store().save_job(job.saved.name, job.saved.model_dump_json())

    def _require_store(self) -> ServiceStore:
        if self._store is None:
            raise ServiceClosedError("the service is not running")
        return self._store

    async def _order(self, job: _Job, order: Order) -> None:
        """Give an order to the driver of a job.

        Raises:
            ConflictError: The job does not run, or refuses the order.
        """
        if job.task is None:
            raise ConflictError(
                f"job {job.saved.name!r} does not run", hint="POST .../resume continues it"
            )
        try:
            reply = await asyncio.to_thread(send_order, self._home / job.saved.name, order)
        except JobNotRunningError as error:
            if isinstance(order, Cancel):
                raise
            raise ConflictError(f"job {job.saved.name!r} is being prepared") from error
        if not reply.ok:
            raise ConflictError(reply.message, hint=reply.hint)

    def _is_over(self, job: _Job) -> bool:
        view = self._view(job)
        return view is not None and view.status == "completed"

    def _view(self, job: _Job) -> JobView | None:
        directory = self._home / job.saved.name
        if not (directory / DATABASE_FILE).exists():
            return None
        try:
            return job_view(directory)
        except UsageError:
            return None  # Its record is being made.

    def _status(self, job: _Job) -> ServedJob:
        saved, view = job.saved, self._view(job)
        status = ServedJob(
            name=saved.name,
            state=_state_of(job, view, is_running=job.task is not None),
            policy=saved.policy,
            created_at=saved.created_at,
            error=saved.error,
        )
        if view is None:
            return status
        names = ("slots", "completed", "failed", "pruned", "pending", "mean_reward", "stopped")
        shown: dict[str, Any] = {name: getattr(view, name) for name in names}
        running = len(view.running) if job.task is not None else 0
        return status.model_copy(
            update={**shown, "measured": dict(view.measured), "running": running}
        )


class _JobDefectError(BenchFlowError):
    """The job ended with a defect of BenchFlow."""

    boundary = "internal"
    default_hint = "read the log of the service"


def _state_of(job: _Job, view: JobView | None, *, is_running: bool) -> JobState:
    if job.saved.error is not None:
        return "failed"
    if not is_running:
        return "completed" if view is not None and view.status == "completed" else "stopped"
    return "paused" if view is not None and view.pause is not None else "running"
