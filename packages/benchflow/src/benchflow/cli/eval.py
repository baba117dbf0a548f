"""`bench eval`: jobs."""

import shlex
import sys
from typing import Annotated

from benchflow_engine.flags import RunFlags
from benchflow_jobs import JobCost, JobOptions, JobReport, job_directories, read_job, run_job
from benchflow_store import member_means, read_finished_rollouts, read_groups
from cyclopts import Parameter

from . import format as fmt
from .entry import INTERRUPTED
from .env_file import EnvFile, with_env_files
from .flags import DEFAULT_JOBS, JobsDir, Json, MaxCost, Progress, Quiet
from .foreign_tasks import explain_refusals
from .format import shorten
from .live import LiveJob
from .output import note, print_blank_line, print_json, print_table
from .preview import PreviewFlags, PreviewOnly, preview_job
from .rollout_flags import Run, configuration
from .rollouts import find_job
from .run import report_missing_forks

_MANY = 100
"""A job with more rollouts is large."""


async def create(
    *,
    tasks_dir: Annotated[str, Parameter(name=["--tasks-dir", "-p"])],
    dataset: Annotated[str | None, Parameter(name=["--dataset", "-d"])] = None,
    options: Run = RunFlags(),
    env_file: EnvFile = (),
    jobs_dir: JobsDir = DEFAULT_JOBS,
    job_name: str | None = None,
    n: Annotated[int, Parameter(name=["--repeats", "-k"])] = 1,
    concurrency: Annotated[int, Parameter(name=["--concurrency", "-n"])] = 4,
    retries: int = 2,
    max_cost: MaxCost = None,
    include: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
    max_tasks: int | None = None,
    fail_under: float | None = None,
    export: tuple[str, ...] = (),
    quiet: Quiet = False,
    progress: Progress = "auto",
    preview: PreviewOnly = PreviewFlags(),
    json: Json = False,
) -> int:
    """Run each task of a directory `--repeats` times, as a job.

    The same --job-name resumes a job. Exit code 1: a rollout has no score.

    Examples:
        bench eval create --tasks-dir benchmarks/clawsbench/tasks --fail-under 1.0 --json
        bench eval create -p TASKS -a mistral-vibe --base-url URL -m M -k 4 --export harbor

    Args:
        tasks_dir: Task, directory of tasks, git URL or registry.json of Harbor, or NAME://ADDRESS.
        dataset: Dataset of a registry, as NAME or NAME@VERSION.
        options: Options of each rollout.
        job_name: Name of the job's directory below --jobs-dir (default: the time).
        n: Rollouts of each task.
        concurrency: Rollouts that run at once.
        retries: Retries of a rollout after a temporary failure of its sandbox or grading.
        include: Pattern for the ids of tasks to run (default: all). Repeatable.
        exclude: Pattern for the ids of tasks to leave out. Repeatable.
        max_tasks: Maximum number of tasks; the first tasks that can run here (default: all).
        fail_under: Mean reward below which the exit code is 1 (default: no limit).
        export: Format of an export of the job, in `export/FORMAT/JOB` below it. Repeatable.
    """
    plan = JobOptions(
        tasks_dir=tasks_dir,
        dataset=dataset,
        run=with_env_files(configuration(options), env_file),
        jobs_dir=jobs_dir,
        job_name=job_name,
        repeats=n,
        concurrency=concurrency,
        retries=retries,
        max_cost=max_cost,
        include=include,
        exclude=exclude,
        max_tasks=max_tasks,
    )
    live = LiveJob(quiet=quiet or json, form=progress)
    return await _preview_or_run(plan, preview, live, export, fail_under, json=json)


async def _preview_or_run(
    plan: JobOptions,
    preview: PreviewFlags,
    live: LiveJob,
    exports: tuple[str, ...],
    fail_under: float | None,
    *,
    json: bool,
) -> int:
    """Preview the job; or run it, print and export its report. Return the exit code."""
    if preview.any:
        return await preview_job(plan, preview, json=json)
    _check_exporters(exports)
    with live:
        report = await run_job(plan, listener=live, interrupts=live.say)
    _show_and_export(report, exports, json=json)
    if report.stopped is not None:
        name = () if plan.job_name else ("--job-name", report.job)
        note(f"resume with: {shlex.join(('bench', *sys.argv[1:], *name))}")
    missing = report_missing_forks(report.records, plan.run)
    if report.status == "interrupted":
        return INTERRUPTED
    return int(missing > 0) or _exit_code(report, fail_under)


def _check_exporters(names: tuple[str, ...]) -> None:
    if not names:
        return
    from benchflow_export import load_exporter

    for name in names:
        load_exporter(name)


def _show_and_export(report: JobReport, names: tuple[str, ...], *, json: bool) -> None:
    print_report(report, json=json)
    if not names:
        return
    from benchflow_export import write_export

    for name in names:
        target = report.directory / "export" / name / report.job
        rollouts = read_finished_rollouts(report.directory, report.records)
        write_export(name, rollouts, target)
        note(f"{name}: {target}")


def list_jobs(*, jobs_dir: JobsDir = DEFAULT_JOBS, json: Json = False) -> None:
    """List the jobs below --jobs-dir, the newest last.

    Examples:
        bench eval list
    """
    reports = [read_job(path) for path in job_directories(jobs_dir)]
    if json:
        print_json([report.model_dump(mode="json", exclude={"records"}) for report in reports])
        return
    rows = [
        (r.job, r.agent, f"{r.finished}/{r.planned}", r.scored, fmt.reward(r.mean_reward))
        for r in reports
    ]
    columns = ("job", "agent", "finished", "scored", "mean reward")
    print_table(columns, rows, empty=f"no jobs below {jobs_dir}")


def show(
    job: str,
    *,
    count_tampered: bool = False,
    pass_reward: float = 1.0,
    jobs_dir: JobsDir = DEFAULT_JOBS,
    json: Json = False,
) -> None:
    """Show the rollouts of one job, and for each task its mean reward and pass@k.

    An attempt passes when its reward is at least --pass-reward. pass@k is the unbiased
    estimate 1 - C(n-c, k) / C(n, k) for c passes in n scored attempts; for the job, the mean over
    the tasks with at least k scored attempts. Rollouts without a score are counted separately.

    Examples:
        bench eval show 2026-11-21
        bench eval show 2026-11-21 --pass-reward 0.5 --json

    Args:
        job: Job: its directory, its name, or a unique start of its name.
        count_tampered: Inclusion of verdicts that the agent may have steered, instead of 0.
        pass_reward: Minimum reward of an attempt that passes.
    """
    report = read_job(
        find_job(job, jobs_dir), count_tampered=count_tampered, pass_reward=pass_reward
    )
    print_report(report, json=json)


def print_report(report: JobReport, *, json: bool) -> None:
    """Print the rollouts of a job and its results by task."""
    if json:
        print_json(report.model_dump(mode="json"))
        return
    has_variants = any(task.variant is not None for task in report.tasks)
    _print_rollouts(report, has_variants=has_variants)
    _print_tasks(report, has_variants=has_variants)
    for task in report.refused:
        explain_refusals(task, before="not run: ")
    if report.cost is not None:
        _print_cost(report.cost)
    if report.stopped is not None:
        note(f"the job is {report.status}: {report.stopped}")
    for remedy, names in _remedies(report).items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        note(f"hint for {', '.join(names[:3])}{more}: {remedy}")
    if report.causes:
        counts = ", ".join(f"{by} {count}" for by, count in sorted(report.causes.items()))
        note(f"without a verdict of the tests, by cause: {counts}")
    probes = [r.endpoint_probe for r in report.records if r.endpoint_probe is not None]
    for line in dict.fromkeys(map(fmt.endpoint, probes)):
        note(line)
    _print_groups(report)
    spread = "" if report.stderr is None else f" ± {fmt.reward(report.stderr)}"
    note(
        f"{report.scored} of {report.planned} scored, {report.unscored} without a score, "
        f"{report.tampered} tampered with, "
        f"mean reward {fmt.reward(report.mean_reward)}{spread}  {report.directory}"
    )


def _print_groups(report: JobReport) -> None:
    """Print what group rewards scored, and the members that they did not see."""
    for mean in report.group_means:
        of = "" if mean.variant is None else f" of {mean.variant}"
        value = fmt.reward(mean.mean)
        note(f"mean of group reward {mean.reward!r}{of}: {value}, over {mean.leaves} leaves")
    if report.group_means:
        note("the other numbers are those of the rollouts' own rewards")
    for group in read_groups(report.directory):
        scored = sum(each.result.reward is not None for each in group.leaves)
        where = group.task if group.variant is None else f"{group.task} of {group.variant}"
        note(f"group reward {group.reward!r}, {where}: {scored} of {len(group.leaves)} leaves")
        for lost in group.lost[:3]:
            note(f"  lost: {lost}: {shorten(lost.reason, 100)}")


def _print_rollouts(report: JobReport, *, has_variants: bool) -> None:
    """Print a row for each rollout; of a large job, only those without a reward."""
    is_large = len(report.records) > _MANY
    groups = member_means(read_groups(report.directory))
    shown = [r for r in report.records if not is_large or r.reward is None]
    rows = [
        (
            record.rollout_id,
            record.task_id,
            *([record.variant or "-"] if has_variants else []),
            fmt.reward(record.reward),
            *(fmt.reward(given.get(record.rollout_id)) for given in groups.values()),
            record.steps,
            record.leaves,
            fmt.grading(record),
            fmt.outcome(record),
        )
        for record in shown
    ]
    variant = ["variant"] if has_variants else []
    names = ("reward", *(f"group {name}" for name in groups))
    columns = ("rollout", "task", *variant, *names, "steps", "leaves", "grading", "outcome")
    print_table(columns, rows, empty="every rollout has a reward" if is_large else "no rollouts")


def _print_tasks(report: JobReport, *, has_variants: bool) -> None:
    """Print each task with its mean reward and pass@k, and the job's pass@k."""
    if not report.tasks:
        return
    most = max(task.scored for task in report.tasks)
    ks = [k for k in range(1, most + 1) if _has_column(k, most)]
    rows = [
        (
            task.task_id,
            *([task.variant or "-"] if has_variants else []),
            task.attempts,
            task.unscored,
            fmt.reward(task.mean_reward),
            *(fmt.reward(task.pass_at_k.get(k)) for k in ks),
        )
        for task in report.tasks
    ]
    variant = ["variant"] if has_variants else []
    names = [f"pass@{k}" for k in ks]
    columns = ("task", *variant, "attempts", "unscored", "mean reward", *names)
    print_blank_line()
    print_table(columns, rows, empty="no tasks")
    for each in report.pass_at_k:
        if each.k in ks:
            over = f"{each.tasks} of {len(report.tasks)} tasks"
            least = fmt.reward(report.pass_reward)
            value = fmt.reward(each.value)
            note(f"pass@{each.k} {value}, mean of {over}; a pass is a reward >= {least}")


def _has_column(k: int, largest: int) -> bool:
    """Return whether a table has a column for this k: a power of 2, or the largest k."""
    return k == largest or k & (k - 1) == 0


def _print_cost(cost: JobCost) -> None:
    limit = "" if cost.limit_usd is None else f" of {cost.limit_usd:g}"
    parts = f"sandboxes {cost.sandbox_usd:.4g}, models {cost.model_usd:.4g}"
    if cost.judge_usd:
        parts += f", judge {cost.judge_usd:.4g}"
    note(f"cost: {cost.total_usd:.4g}{limit} US dollars ({parts})")


def _remedies(report: JobReport) -> dict[str, list[str]]:
    """Return each remedy, with the rollouts that have no reward and need the remedy."""
    remedies: dict[str, list[str]] = {}
    for record in report.records:
        if record.reward is None and record.error is not None and record.error.hint:
            remedies.setdefault(record.error.hint, []).append(record.rollout_id)
    return remedies


def _exit_code(report: JobReport, fail_under: float | None) -> int:
    if not report.complete:
        return 1
    mean = report.mean_reward
    return int(fail_under is not None and (mean is None or mean < fail_under))
