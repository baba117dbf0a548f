"""`bench job`: run a job of a job.toml, and give orders to a job that runs."""

import getpass
import os
import signal
import time
from pathlib import Path
from typing import Annotated, Any

from benchflow_contracts import StoreError, UsageError
from benchflow_jobs import JobReport, JobView, job_view, read_job_config, resume_job, run_job
from benchflow_jobs import orders as order
from benchflow_jobs.control_socket import JobNotRunningError, running_process, send_order
from benchflow_jobs.offline import change_job
from benchflow_jobs.planning import load_plan, parse_override
from cyclopts import Parameter

from . import format as fmt
from .entry import INTERRUPTED
from .eval import print_report
from .flags import DEFAULT_JOBS, JobsDir, Json
from .live import LiveJob
from .output import note, print_json
from .rollouts import find_job

Variant = Annotated[str | None, Parameter(help="Variant, instead of the whole job.")]
Endpoint = Annotated[
    str | None, Parameter(help="URL of a model endpoint, instead of the whole job.")
]
Trust = Annotated[
    bool, Parameter(help="Permission to run a plan of another user, or one that was changed.")
]
_KILL_SEC = 15.0


async def run(
    file: Path,
    *,
    set_: Annotated[tuple[str, ...], Parameter(name="--set")] = (),
    job_name: str | None = None,
    quiet: bool = False,
    json: Json = False,
) -> int:
    """Run the job of a job.toml, or of its like in YAML.

    The same command resumes the job if its file names it. The first Ctrl-C lets what runs end.

    Examples:
        bench job run job.toml
        bench job run job.toml --set design.replications=5 --set concurrency.slots=16
        bench job run job.toml --set variants.small.agent.model=M --job-name nightly

    Args:
        file: File of the job.
        set_: Value that replaces one of the file, as KEY=VALUE. Repeatable.
        job_name: Name of the job's directory, instead of job.name of the file.
        quiet: No progress on standard error.
    """
    overrides = dict(parse_override(text) for text in set_)
    if job_name is not None:
        overrides["job.name"] = job_name
    config = read_job_config(file, overrides)
    with LiveJob(quiet=quiet or json) as live:
        report = await run_job(config, listener=live, interrupts=note)
    return _finish(report, config.job.jobs_dir, json=json)


async def resume(
    job: str,
    *,
    variant: Variant = None,
    endpoint: Endpoint = None,
    trust: Trust = False,
    quiet: bool = False,
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
    scope, name = _scope(variant, endpoint)
    try:
        running_process(directory)
    except JobNotRunningError:
        with LiveJob(quiet=quiet or json) as live:
            report = await resume_job(directory, trust=trust, listener=live, interrupts=note)
        return _finish(report, directory.parent, json=json)
    return _send(directory, order.Resume(by=_me(), scope=scope, name=name), json=json)


def pause(
    job: str,
    *,
    variant: Variant = None,
    endpoint: Endpoint = None,
    reason: str = "",
    jobs_dir: JobsDir = DEFAULT_JOBS,
    json: Json = False,
) -> int:
    """Start no further rollout of a job, a variant or a model endpoint. What runs continues.

    Examples:
        bench job pause nightly --reason "the endpoint is being updated"
        bench job pause nightly --variant large

    Args:
        job: Job: its directory, its name, or a unique start of its name.
        reason: Reason, which `bench job status` shows.
    """
    scope, name = _scope(variant, endpoint)
    sent = order.Pause(by=_me(), scope=scope, name=name, reason=reason)
    return _send(find_job(job, jobs_dir), sent, json=json)


def drain(job: str, *, jobs_dir: JobsDir = DEFAULT_JOBS, json: Json = False) -> int:
    """Let what runs end, start nothing more, and end the job. It can be resumed.

    Examples:
        bench job drain nightly

    Args:
        job: Job: its directory, its name, or a unique start of its name.
    """
    return _send(find_job(job, jobs_dir), order.Drain(by=f"drain by {_me()}"), json=json)


def cancel(job: str, *, jobs_dir: JobsDir = DEFAULT_JOBS, json: Json = False) -> int:
    """End what runs now, and then the job. It can be resumed.

    Examples:
        bench job cancel nightly

    Args:
        job: Job: its directory, its name, or a unique start of its name.
    """
    return _send(find_job(job, jobs_dir), order.Cancel(by=f"cancel by {_me()}"), json=json)


def kill(job: str, *, jobs_dir: JobsDir = DEFAULT_JOBS, json: Json = False) -> int:
    """Cancel a job; if its process does not answer or end in 15 seconds, kill the process.

    Examples:
        bench job kill nightly

    Args:
        job: Job: its directory, its name, or a unique start of its name.
    """
    directory = find_job(job, jobs_dir)
    process = running_process(directory)
    try:
        sent = order.Kill(by=f"kill by {_me()}")
        message = send_order(directory, sent, timeout_sec=_KILL_SEC).message
    except StoreError as error:
        message = str(error)
    if not _ends(process, _KILL_SEC):
        os.kill(process, signal.SIGKILL)
        message += f"; killed process {process}; the next resume removes its sandboxes"
    return _print(order.Reply(ok=True, message=message), json=json)


async def requeue(
    job: str,
    *,
    slot: tuple[str, ...] = (),
    error: tuple[str, ...] = (),
    jobs_dir: JobsDir = DEFAULT_JOBS,
    json: Json = False,
) -> int:
    """Give slots without a score one more attempt, also beyond the cap.

    Examples:
        bench job requeue nightly --error sandbox
        bench job requeue nightly --slot 'crm/*#0'

    Args:
        job: Job: its directory, its name, or a unique start of its name.
        slot: Pattern for names of slots (default: all). Repeatable.
        error: Pattern for the boundary, the type or the fingerprint of the last error. Repeatable.
    """
    sent = order.Requeue(by=_me(), slots=slot, errors=error)
    return await _change(find_job(job, jobs_dir), sent, json=json)


async def extend(
    job: str,
    *,
    replications: Annotated[int | None, Parameter(name=["--replications", "-k"])] = None,
    tasks: tuple[str, ...] = (),
    variants: Path | None = None,
    trust: Trust = False,
    jobs_dir: JobsDir = DEFAULT_JOBS,
    json: Json = False,
) -> int:
    """Add replications, tasks or variants to a job, also while it runs.

    Examples:
        bench job extend nightly --replications 5
        bench job extend nightly --variants more.toml

    Args:
        job: Job: its directory, its name, or a unique start of its name.
        replications: Number of replications in all.
        tasks: Source of more tasks, as in dataset.paths. Repeatable.
        variants: File with more [[variants]].
    """
    more = () if variants is None else _variants(variants)
    sent = order.Extend(by=_me(), replications=replications, tasks=tasks, variants=more)
    return await _change(find_job(job, jobs_dir), sent, trust=trust, json=json)


def set_limits(
    job: str,
    *,
    concurrency: Annotated[int | None, Parameter(name=["--concurrency", "-n"])] = None,
    endpoint: tuple[str, ...] = (),
    cost_usd: float | None = None,
    tokens: int | None = None,
    jobs_dir: JobsDir = DEFAULT_JOBS,
    json: Json = False,
) -> int:
    """Change the limits of a job that runs. What runs over a lower limit continues.

    Examples:
        bench job set nightly --concurrency 16
        bench job set nightly --endpoint http://127.0.0.1:8000/v1=8 --cost-usd 50

    Args:
        job: Job: its directory, its name, or a unique start of its name.
        concurrency: Rollouts that run at once.
        endpoint: Rollouts at one time of a model endpoint, as URL=NUMBER. Repeatable.
        cost_usd: Budget for the cost of model calls.
        tokens: Budget for the tokens of model calls.
    """
    endpoints: dict[str, int] = {}
    for text in endpoint:
        url, _, number = text.rpartition("=")
        if not url or not number.isdecimal() or int(number) < 1:
            raise UsageError(f"--endpoint {text!r} is not URL=NUMBER", hint="for example URL=8")
        endpoints[url] = int(number)
    sent = order.SetLimits(
        by=_me(), slots=concurrency, endpoints=endpoints, cost_usd=cost_usd, tokens=tokens
    )
    return _send(find_job(job, jobs_dir), sent, json=json)


def status(job: str, *, jobs_dir: JobsDir = DEFAULT_JOBS, json: Json = False) -> None:
    """Show the state of a job, also while it runs.

    Examples:
        bench job status nightly

    Args:
        job: Job: its directory, its name, or a unique start of its name.
    """
    view = job_view(find_job(job, jobs_dir))
    if json:
        print_json(view.model_dump(mode="json"))
        return
    note_view(view)


def watch(
    job: str,
    *,
    interval: float = 2.0,
    jobs_dir: JobsDir = DEFAULT_JOBS,
    json: Json = False,
) -> None:
    """Show the state of a job whenever it changes, until no process runs it.

    Examples:
        bench job watch nightly
        bench job watch nightly --json

    Args:
        job: Job: its directory, its name, or a unique start of its name.
        interval: Seconds between two looks.
    """
    directory = find_job(job, jobs_dir)
    last: dict[str, Any] = {}
    while True:
        view = job_view(directory)
        now = view.model_dump(mode="json")
        if now != last:
            last = now
            if json:
                print_json(now, is_line=True)
            else:
                note(_line(view))
        if view.process is None:
            return
        time.sleep(interval)


def note_view(view: JobView) -> None:
    """Print the state of a job for people."""
    process = "no process runs it" if view.process is None else f"process {view.process}"
    note(f"job {view.job}: {view.status}, {process}")
    note(f"  {_line(view)}")
    if len(view.variants) > 1:
        for name, variant in view.variants.items():
            mean = fmt.reward(variant.mean_reward)
            note(
                f"  variant  {name}: {variant.completed} scored, {variant.pending} left, "
                f"mean {mean}"
            )
    for error, count in list(view.errors.items())[:3]:
        note(f"  error    {count} x {fmt.shorten(error, 200)}")
    for each in view.running:
        age = "" if each.started_at is None else f"  {time.time() - each.started_at:.0f}s"
        note(f"  running  {each.slot}  attempt {each.attempt}{age}  {each.rollout}")
    if view.pause is not None:
        by = view.pause.get("by") or "unknown"
        paused = view.pause.get("name") or view.pause.get("scope")
        note(f"  paused   {paused}, by {by}: {view.pause.get('reason') or 'no reason given'}")
    if view.stopped is not None:
        note(f"  stopped  {view.stopped}")
    if view.process is None and view.pending:
        note(f"continue it with: bench job resume {view.directory}")


def _line(view: JobView) -> str:
    parts = [
        f"{view.completed} of {view.slots} scored",
        f"{len(view.running)} running",
        f"{view.pending - len(view.running)} waiting",
        f"{view.failed} failed",
    ]
    if view.pruned:
        parts.append(f"{view.pruned} given up")
    parts.append(f"mean reward {fmt.reward(view.mean_reward)}")
    if "cost_usd" in view.measured:
        parts.append(f"{view.measured['cost_usd']:.4g} USD")
    return ", ".join(parts)


def _has_several_variants(directory: Path) -> bool:
    plan = load_plan(directory)
    return plan is not None and len(plan.variants) > 1


def _finish(report: JobReport, jobs_dir: Path, *, json: bool) -> int:
    """Print the report and the command that continues the job; return the exit code."""
    print_report(report, json=json)
    if report.stopped is not None:
        elsewhere = "" if jobs_dir == DEFAULT_JOBS else f" --jobs-dir {jobs_dir}"
        note(f"resume with: bench job resume {report.job}{elsewhere}")
    if _has_several_variants(report.directory):
        note(f"compare the variants with: bench analyze {report.directory}")
    if report.status in {"interrupted", "killed"}:
        return INTERRUPTED
    return int(not report.complete)


async def _change(
    directory: Path, sent: order.Requeue | order.Extend, *, trust: bool = False, json: bool
) -> int:
    try:
        running_process(directory)
    except JobNotRunningError:
        return _print(await change_job(directory, sent, trust=trust), json=json)
    return _send(directory, sent, json=json)


def _send(directory: Path, sent: order.Order, *, json: bool) -> int:
    return _print(send_order(directory, sent), json=json)


def _print(reply: order.Reply, *, json: bool) -> int:
    if not reply.ok:
        raise UsageError(reply.message, hint=reply.hint)
    if json:
        print_json(reply.model_dump(mode="json"))
    else:
        note(reply.message)
    return 0


def _scope(variant: str | None, endpoint: str | None) -> tuple[order.Scope, str]:
    if variant is not None and endpoint is not None:
        raise UsageError("--variant and --endpoint were both given", hint="give one of them")
    if variant is not None:
        return "variant", variant
    return ("job", "") if endpoint is None else ("endpoint", endpoint)


def _variants(file: Path) -> tuple[dict[str, Any], ...]:
    import tomllib

    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {str(file)!r}: {error.strerror}", hint="check it") from error
    except ValueError as error:
        raise UsageError(f"not TOML: {error}", where=str(file), hint="correct it") from error
    if set(tables) != {"variants"}:
        raise UsageError(
            "it has other tables than [[variants]]",
            where=str(file),
            hint="docs/reference/job-toml.md shows variants",
        )
    return tuple(tables["variants"])


def _me() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _ends(process: int, seconds: float) -> bool:
    """Return whether a process ends in time."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    import select

    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)
