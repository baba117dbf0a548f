"""`bench job run` and `resume`: run the job of a job.toml."""

import shlex
from pathlib import Path
from typing import Annotated

from benchflow_contracts import UsageError
from benchflow_jobs import JobReport, read_job_config, resume_job, run_job
from benchflow_jobs import orders as order
from benchflow_jobs.control_socket import JobNotRunningError, running_process
from benchflow_jobs.planning import load_plan, parse_override
from cyclopts import Parameter

from .entry import INTERRUPTED
from .eval import print_report
from .flags import DEFAULT_JOBS, JobsDir, Json, Progress
from .live import LiveJob
from .orders import Endpoint, Trust, Variant, give_order, scope_of, user_name
from .output import note
from .preview import preview_checks
from .rollouts import find_job


async def run(
    file: Path,
    *,
    set_: Annotated[tuple[str, ...], Parameter(name="--set")] = (),
    job_name: str | None = None,
    backend: str | None = None,
    dry_run: bool = False,
    quiet: bool = False,
    progress: Progress = "auto",
    json: Json = False,
) -> int:
    """Run the job of a job.toml, or of its like in YAML.

    The same command resumes the job if its file names it. The first Ctrl-C lets what runs end.

    Examples:
        bench job run job.toml
        bench job run job.toml --set design.replications=5 --set concurrency.slots=16
        bench job run job.toml --dry-run
        bench job run job.toml --backend ray --set backend.options.address=HEAD:6379
        bench job run job.toml --set variants.small.agent.model=M --job-name nightly

    Args:
        file: File of the job.
        set_: Value that replaces one of the file, as KEY=VALUE. Repeatable.
        job_name: Name of the job's directory, instead of job.name of the file.
        backend: Where rollouts run, instead of backend.name of the file: local, a registry name
            such as ray, or an import path module:attr.
        dry_run: Every check that comes before the first rollout, instead of a run.
        quiet: No progress on standard error.
    """
    overrides = dict(parse_override(text) for text in set_)
    if job_name is not None:
        overrides["job.name"] = job_name
    if backend is not None:
        overrides["backend.name"] = backend
    config = read_job_config(file, overrides)
    if dry_run:
        return await preview_checks(config, json=json)
    with LiveJob(quiet=quiet or json, form=progress) as live:
        report = await run_job(config, listener=live, interrupts=live.say)
    return _finish(report, config.job.jobs_dir, json=json)


async def resume(
    job: str,
    *,
    variant: Variant = None,
    endpoint: Endpoint = None,
    trust: Trust = False,
    quiet: bool = False,
    progress: Progress = "auto",
    jobs_dir: JobsDir = DEFAULT_JOBS,
    json: Json = False,
) -> int:
    """Continue a job: end a pause of the process that runs it, or run what is left here.

    Examples:
        bench job resume nightly
        bench job resume nightly --variant large

    Args:
        job: Job: its directory, its name, or a unique start of its name.
        quiet: No progress on standard error.
    """
    directory = find_job(job, jobs_dir)
    scope, name = scope_of(variant, endpoint)
    try:
        running_process(directory)
    except JobNotRunningError:
        if scope != "job":
            raise UsageError(
                f"no process runs job {directory.name!r}, so its pauses have ended",
                hint=f"resume all of it: bench job resume {directory}",
            ) from None
        with LiveJob(quiet=quiet or json, form=progress) as live:
            report = await resume_job(directory, trust=trust, listener=live, interrupts=live.say)
        return _finish(report, directory.parent, json=json)
    return give_order(directory, order.Resume(by=user_name(), scope=scope, name=name), json=json)


def _has_several_variants(directory: Path) -> bool:
    plan = load_plan(directory)
    return plan is not None and len(plan.variants) > 1


def _finish(report: JobReport, jobs_dir: Path, *, json: bool) -> int:
    """Print the report and the command that continues the job; return the exit code."""
    print_report(report, json=json)
    if report.stopped is not None:
        elsewhere = [] if jobs_dir == DEFAULT_JOBS else ["--jobs-dir", str(jobs_dir)]
        words = ["bench", "job", "resume", report.job, *elsewhere]
        note(f"resume with: {shlex.join(words)}")
    if _has_several_variants(report.directory):
        words = ["bench", "analyze", str(report.directory)]
        note(f"compare the variants with: {shlex.join(words)}")
    if report.status in {"interrupted", "killed"}:
        return INTERRUPTED
    return int(not report.complete)
