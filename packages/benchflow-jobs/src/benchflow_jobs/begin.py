"""The begin of a run of a job: its plan, its tasks, and its directory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchflow_contracts import StoreError, Task, UsageError
from benchflow_engine.planes import check_verifiers
from benchflow_engine.preflight import check_agent, check_endpoint
from benchflow_engine.secrets import with_secrets
from benchflow_engine.task_formats import runnable_task
from benchflow_store import latest_records
from benchflow_store.database import DATABASE_FILE, read_job_state

from .options import JobOptions
from .planning import (
    JobConfig,
    JobConfigError,
    JobSource,
    Problem,
    ResolvedJob,
    Variant,
    config_of,
    difference,
    extend,
    find_dataset,
    find_tasks,
    is_own_plan,
    load_plan,
    parse_job,
    resolve_job,
    write_plan,
)
from .planning.job_config import DatasetConfig
from .report import has_record

if TYPE_CHECKING:
    from .orders import Extend

_FLAGS = {
    "dataset.paths": "--tasks-dir",
    "dataset.name": "--dataset",
    "dataset.limit": "--max-tasks",
    "dataset.include": "--include",
    "dataset.exclude": "--exclude",
    "dataset": "--tasks-dir",
}


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A plan with its tasks, by id."""

    plan: ResolvedJob
    tasks: Mapping[str, Task]

    def task(self, index: int) -> Task:
        """Return the task of a slot, with the image and the limits of the job."""
        return self.plan.effective_task(index, self.tasks[self.plan.slots[index].task])


def plan_of(job: JobConfig | JobOptions) -> PlannedJob:
    """Find the tasks of a job and plan its slots.

    Raises:
        JobConfigError: The configuration does not fit together, or with the tasks.
    """
    if isinstance(job, JobOptions):
        try:
            return plan_of(config_of(job))
        except JobConfigError as error:
            raise JobConfigError([_by_flag(each) for each in error.problems]) from error
    dataset = find_tasks(job)
    return PlannedJob(resolve_job(job, dataset), {task.id: task for task in dataset.tasks})


def _by_flag(problem: Problem) -> Problem:
    """Return a problem under the flag that sets the value."""
    flag = _FLAGS.get(".".join(str(part) for part in problem.key[:2]))
    hint = problem.hint
    for key, name in _FLAGS.items():
        hint = hint.replace(key, name)
    return replace(problem, key=(flag,) if flag else problem.key, hint=hint)


def planned_before(directory: Path, *, trust: bool = False) -> PlannedJob:
    """Return the plan of a job's directory, with its tasks and secrets.

    Raises:
        UsageError: The directory has no job; another user planned the job and `trust` is not set;
            a task changed since; or a secret is not set here.
        StoreError: The plan is damaged.
    """
    plan = load_plan(directory)
    if plan is None:
        raise UsageError(
            f"{str(directory)!r} is not a job directory: it has no job.json",
            hint="list jobs with `bench eval list`",
        )
    if not trust and not is_own_plan(directory):
        raise UsageError(
            f"the plan of job {directory.name!r} was changed, or made by another user",
            hint="a plan names programs to run: read job.json, then give --trust",
        )
    variants = tuple(replace(each, run=with_secrets(each.run)) for each in plan.variants)
    return _with_tasks(replace(plan, variants=variants), {})


def settle_plan(directory: Path, job: PlannedJob) -> PlannedJob:
    """Write the plan of a new job, or compare a resumed job with its plan.

    Return the plan. If the job was extended, it is the extended one.

    Raises:
        UsageError: The job was planned with other tasks or options, or by another version.
        StoreError: The plan on disk is damaged.
    """
    earlier = load_plan(directory)
    if earlier is None:
        write_plan(directory, job.plan)
        return job
    found = difference(earlier, job.plan)
    if found is not None:
        raise UsageError(
            f"job {directory.name!r} was planned differently: {found}",
            hint="give another --job-name, or the options of the first run; `bench job extend` "
            "adds to a job, and `bench job resume` continues it as planned",
        )
    if len(earlier.slots) == len(job.plan.slots):
        return job
    secret = {each.id: each for each in job.plan.variants}
    variants = tuple(secret.get(each.id) or _completed(each) for each in earlier.variants)
    return _with_tasks(replace(earlier, variants=variants), job.tasks)


def _completed(variant: Variant) -> Variant:
    return replace(variant, run=with_secrets(variant.run))


def _with_tasks(plan: ResolvedJob, known: Mapping[str, Task]) -> PlannedJob:
    """Return the plan with its tasks; read those that are not known from their directories."""
    options = plan.variants[0].run.adapter_options()
    tasks = dict(known)
    for planned in plan.tasks:
        if planned.id in tasks:
            continue
        if planned.path is None:
            raise UsageError(
                f"the plan of version 0.8 does not say where task {planned.id!r} is",
                hint="resume the job with the command that started it",
            )
        task = runnable_task(planned.path, options)
        if task.digest != planned.digest:
            raise UsageError(
                f"the task {planned.id!r} changed since the job was planned",
                hint="restore the task, or start a new job",
                where=str(planned.path),
            )
        tasks[planned.id] = task
    return PlannedJob(plan, tasks)


async def extended(job: PlannedJob, order: "Extend") -> PlannedJob:
    """Return the job with the replications, tasks and variants of an order.

    Raises:
        JobConfigError: They do not fit to the job, or a source of tasks cannot be read.
        UsageError: A variant has an agent that does not exist, or that cannot work as configured.
        TaskError: A task has a verifier that does not exist.
        ModelEndpointError: The model endpoint of a variant does not answer.
    """
    options = job.plan.variants[0].run.adapter_options()
    tasks: tuple[Task, ...] = ()
    if order.tasks:
        tasks = find_dataset(DatasetConfig(paths=order.tasks), options).tasks
    tables = {"dataset": {"paths": ["."]}, "variants": [dict(each) for each in order.variants]}
    variants = parse_job(JobSource(tables, "extend")).variants if order.variants else ()
    plan = extend(job.plan, replications=order.replications, tasks=tasks, variants=variants)
    # A resume checks every variant, so a wrong one would keep the whole job from continuing.
    added = plan.variants[len(job.plan.variants) :]
    for variant in added:
        check_agent(variant.run)
    check_verifiers([variant.run for variant in plan.variants], tasks)
    for run in {variant.run.model.base_url: variant.run for variant in added}.values():
        await check_endpoint(run)
    return PlannedJob(plan, {**{task.id: task for task in tasks}, **job.tasks})


def slots_left(directory: Path, plan: ResolvedJob) -> int:
    """Return how many slots of a job have no score. Without one, nothing runs.

    Raises:
        StoreError: The record of the job is damaged, or of another version.
    """
    if has_record(directory):
        state = read_job_state(directory / DATABASE_FILE)
        added = len(plan.slots) - len(state.slots)
        return sum(each.status != "completed" for each in state.slots) + max(added, 0)
    try:
        latest = latest_records(directory)
    except StoreError:
        return len(plan.slots)
    names: Sequence[str] = [slot.name for slot in plan.slots]
    return sum(name not in latest or not latest[name].is_final for name in names)
