"""The summary of a job, always computed from its record."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final, Literal

from benchflow_contracts import ListedTask, Model, RolloutRecord, StoreError, TrainingOptions
from benchflow_export import (
    export_trajectories_to_jsonl,
    leaf_record,
    read_trainer_rows,
    with_inter_advantage,
)
from benchflow_export.trainer import is_chosen
from benchflow_store import (
    GroupMean,
    group_means,
    latest_records,
    read_finished_rollouts,
    read_groups,
    write_text,
)
from benchflow_store.database import (
    DATABASE_FILE,
    EmptyDatabaseError,
    JobReader,
    JobStatus,
    RunControl,
    SchemaVersionError,
)
from pydantic import Field

from .budget import JUDGE_COST, SANDBOX_COST, measured_judge
from .planning import load_plan
from .task_results import PassAtK, TaskResult, mean_pass_at_k

_JOB_FILES: Final = ("job.json", "summary.json")
"""A job has a plan from its start; jobs of old versions have only a summary."""


class JobCost(Model):
    """US dollars of all attempts of a job. A part without a known price is 0."""

    model_usd: float = 0
    sandbox_usd: float = 0
    judge_usd: float = 0
    """Calls of rewards and of group rewards to the judge's model."""
    limit_usd: float | None = None
    """The limit of the last run; see `[budget]`."""

    @property
    def total_usd(self) -> float:
        """All together."""
        return self.model_usd + self.sandbox_usd + self.judge_usd


class JobReport(Model):
    """`summary.json`."""

    schema_version: Literal["1.0"] = "1.0"
    job: str
    directory: Path
    agent: str
    model: str | None
    planned: int
    finished: int
    scored: int
    mean_reward: float | None
    """Mean of the rollouts' own rewards, over scored and tampered ones. A tampered rollout counts
    as 0, or as its reward with `count_tampered`. `null` without such rollouts."""
    group_means: tuple[GroupMean, ...] = ()
    """The means of group rewards, by reward and variant."""
    stderr: float | None
    """Standard error of that mean; `null` below two scored rollouts."""
    tampered: int = 0
    """Rollouts with a verdict that the agent may have steered."""
    errors: dict[str, int]
    """Failed rollouts by boundary."""
    causes: Mapping[str, int] = {}
    """Rollouts without a verdict of the tests, by its cause: `agent` (these are scored), `task`,
    `host`, `operator` or `unknown`."""
    status: JobStatus | None = None
    """The state of the job; `null` for a job of version 0.8."""
    stopped: str | None = None
    """Why the job stopped before its end, in one line. The same command continues the job."""
    cost: "JobCost | None" = None
    """`null` if nothing of the job has a known price, and the job has no limit."""
    refused: tuple[ListedTask, ...] = ()
    """Tasks that were asked for and cannot be run here. They are in no other number."""
    pass_reward: float = 1.0
    """The least reward of an attempt that passes."""
    tasks: tuple[TaskResult, ...] = ()
    """The finished rollouts by task and variant, in schedule order."""
    pass_at_k: tuple[PassAtK, ...] = ()
    """The mean over tasks, by k from 1. Empty for several variants: `bench analyze` has it of
    each variant."""
    records: tuple[RolloutRecord, ...] = Field(repr=False)
    """Without them in its text: `asyncio.run` makes the text of the result, and drops it."""

    @property
    def unscored(self) -> int:
        """Planned rollouts that are not in the mean: without a score, or not finished."""
        return self.planned - sum(record.counted_reward() is not None for record in self.records)

    @property
    def complete(self) -> bool:
        """Whether every task was run, and every planned rollout graded."""
        graded = sum(record.counted_reward() is not None for record in self.records)
        return self.stopped is None and graded == self.planned and not self.refused


def summarise(
    directory: Path,
    records: Sequence[RolloutRecord],
    *,
    planned: int | None = None,
    refused: Sequence[ListedTask] = (),
    count_tampered: bool = False,
    pass_reward: float = 1.0,
    control: RunControl | None = None,
    cost: JobCost | None = None,
) -> JobReport:
    """Sum up the rollouts of a job, whose state is `control`.

    A rollout whose verdict the agent may have steered counts as 0; with `count_tampered`, the
    verdict counts. An attempt with at least `pass_reward` passes. A cancelled rollout is not
    finished: a resume repeats it.
    """
    ended = [record for record in records if record.status != "cancelled"]
    by_task: dict[tuple[str, str | None], list[float | None]] = {}
    for record in ended:
        paid = record.counted_reward(count_tampered=count_tampered)
        by_task.setdefault((record.task_id, record.variant), []).append(paid)
    rewards = [reward for paid in by_task.values() for reward in paid if reward is not None]
    tasks = [TaskResult.of(task, paid, pass_reward, name) for (task, name), paid in by_task.items()]
    has_variants = len({name for _, name in by_task}) > 1
    found = [record.error for record in ended if record.error is not None]
    errors = Counter[str](error.boundary for error in found)
    causes = Counter[str](r.cause.by for r in ended if r.cause is not None)
    stops = (f"{error.type}: {error.message}" for error in found if error.stops_job)
    several = len(rewards) > 1
    return JobReport(
        job=directory.name,
        directory=directory,
        agent=", ".join(dict.fromkeys(record.agent for record in records)),
        model=records[0].model if records else None,
        planned=len(records) if planned is None else planned,
        finished=len(ended),
        scored=sum(record.reward is not None for record in records),
        tampered=sum(record.tampered > 0 for record in records),
        mean_reward=fmean(rewards) if rewards else None,
        stderr=stdev(rewards) / math.sqrt(len(rewards)) if several else None,
        errors=dict(errors),
        causes=dict(causes),
        status=None if control is None else control.status,
        stopped=next(stops, None) if control is None else control.stopped,
        cost=cost,
        group_means=tuple(group_means(read_groups(directory))),
        refused=tuple(refused),
        pass_reward=pass_reward,
        tasks=tuple(tasks),
        pass_at_k=() if has_variants else mean_pass_at_k(tasks),
        records=tuple(records),
    )


def read_job(
    directory: Path, *, count_tampered: bool = False, pass_reward: float = 1.0
) -> JobReport:
    """Return the summary of a job on disk, as `summarise` does, also while the job runs.

    Raises:
        StoreError: There is no job, or a record in it is damaged.
    """
    if not any((directory / name).is_file() for name in _JOB_FILES):
        raise StoreError(
            f"{str(directory)!r} is not a job directory: it has no {' and no '.join(_JOB_FILES)}"
        )
    plan, path = load_plan(directory), directory / "summary.json"
    planned, refused = _read_summary(path) if path.exists() else (None, [])
    control, records = _control_and_records(directory)
    return summarise(
        directory,
        records,
        planned=planned if plan is None else len(plan.slots),
        refused=refused,
        count_tampered=count_tampered,
        pass_reward=pass_reward,
        control=control,
        cost=_cost(directory),
    )


def job_directories(jobs_dir: Path) -> list[Path]:
    """Return the directories of the jobs below `jobs_dir`, also of running ones, by name."""
    files = (path for name in _JOB_FILES for path in jobs_dir.glob(f"*/{name}"))
    return sorted({path.parent for path in files})


def _read_summary(path: Path) -> tuple[int, list[ListedTask]]:
    """Return the number of planned rollouts and the refused tasks."""
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        refused = [ListedTask.model_validate(item) for item in summary.get("refused", ())]
        return int(summary["planned"]), refused
    except OSError as error:
        raise StoreError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"damaged summary: {error}", where=str(path)) from error


def has_record(directory: Path) -> bool:
    """Return whether the directory has a database with a job.

    A driver that is killed while it creates the database leaves an empty one.
    """
    if not (directory / DATABASE_FILE).exists():
        return False
    try:
        with JobReader(directory / DATABASE_FILE):
            return True
    except EmptyDatabaseError:
        return False
    except SchemaVersionError as error:
        if error.found == 0:
            return False
        raise


def _control_and_records(directory: Path) -> tuple[RunControl | None, list[RolloutRecord]]:
    """Return the state of the job, and the records that count in schedule order.

    A job of version 0.8 has no database.
    """
    if not has_record(directory):
        return None, _in_schedule_order(directory)
    with JobReader(directory / DATABASE_FILE) as reader:
        found = (slot.record for slot in reader.slots())
        records = [RolloutRecord.model_validate_json(each) for each in found if each is not None]
        return reader.control(), records


def _in_schedule_order(directory: Path) -> list[RolloutRecord]:
    plan, latest = load_plan(directory), latest_records(directory)
    slots = () if plan is None else plan.slots
    places = {slot.name: place for place, slot in enumerate(slots)}
    return [latest[slot] for slot in sorted(latest, key=lambda slot: places.get(slot, len(places)))]


def make_report(
    directory: Path, refused: Sequence[ListedTask], control: RunControl | None
) -> JobReport:
    """Return the summary of a job whose run has ended in the state `control`."""
    plan = load_plan(directory)
    cost = _cost(directory)
    return summarise(
        directory,
        _control_and_records(directory)[1],
        planned=None if plan is None else len(plan.slots),
        refused=refused,
        control=control,
        cost=cost,
    )


def _cost(directory: Path) -> JobCost | None:
    """Return what the attempts of a job cost, if something has a price or the job has a limit."""
    if not has_record(directory):
        return None
    with JobReader(directory / DATABASE_FILE) as reader:
        measured, limit = reader.measured_totals(), reader.control().cost_limit_usd
    judges = [measured_judge(group.judge) for group in read_groups(directory)]
    judge_costs = [each[JUDGE_COST] for each in (measured, *judges) if JUDGE_COST in each]
    known = bool(judge_costs) or bool(measured.keys() & {"cost_usd", SANDBOX_COST})
    if limit is None and not known:
        return None
    return JobCost(
        model_usd=measured.get("cost_usd", 0),
        sandbox_usd=measured.get(SANDBOX_COST, 0),
        judge_usd=sum(judge_costs),
        limit_usd=limit,
    )


def _trainer_rows(directory: Path, records: Sequence[RolloutRecord]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a job. Those of rollouts do not have the verdicts of group rewards."""
    if not read_groups(directory):
        for each in records:
            yield from read_trainer_rows(directory / each.rollout_id)
        return
    for rollout in read_finished_rollouts(directory, records):
        rows = (leaf_record(rollout, leaf) for leaf in rollout.tree.leaves)
        yield from (row for row in rows if is_chosen(row, TrainingOptions()))


def write_report(report: JobReport) -> None:
    """Write `summary.json`, `results.jsonl` and `verifiers.jsonl` in schedule order."""
    directory, records = report.directory, report.records
    write_text(directory / "results.jsonl", "".join(r.model_dump_json() + "\n" for r in records))
    rows = with_inter_advantage(lambda: _trainer_rows(directory, records), directory.name)
    try:
        export_trajectories_to_jsonl(rows, directory / "verifiers.jsonl")
    except OSError as error:
        where = str(directory / "verifiers.jsonl")
        raise StoreError(f"cannot write {where!r}: {error.strerror}") from error
    summary = report.model_dump_json(indent=2, exclude={"records"})
    write_text(directory / "summary.json", summary + "\n")
