"""`bench job status` and `watch`: show the state of a job."""

import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from benchflow_contracts import UsageError
from benchflow_jobs import JobView, job_view

from . import format as fmt
from .flags import DEFAULT_JOBS, JobsDir, Json
from .output import print_json, print_line
from .rollouts import find_job

_MAX_INTERVAL = 86_400.0
_MAX_RUNNING = 20
"""Rollouts that the state lists by name."""


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
    _print_view(view)


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
    if not 0 < interval <= _MAX_INTERVAL:
        reason = f"it is not greater than 0, and at most {_MAX_INTERVAL:g}"
        raise UsageError(f"--interval {interval:g}: {reason}", hint="for example 2")
    directory = find_job(job, jobs_dir)
    last: dict[str, Any] = {}
    while True:
        view = job_view(directory)
        now = view.model_dump(mode="json")
        seen = {name: value for name, value in now.items() if name != "heartbeat"}
        if seen != last:
            last = seen
            if json:
                print_json(now, is_line=True)
            else:
                print_line(_line(view))
            sys.stdout.flush()
        if view.process is None:
            return
        time.sleep(interval)


def _print_view(view: JobView) -> None:
    """Print the state of a job for people."""
    process = "no process runs it" if view.process is None else f"process {view.process}"
    is_cut_short = view.process is None and view.status == "running"
    print_line(f"job {view.job}: {'cut short' if is_cut_short else view.status}, {process}")
    for line in (*_signs_of_life(view), _line(view)):
        print_line(f"  {line}")
    for name, variant in view.variants.items() if len(view.variants) > 1 else ():
        mean = fmt.reward(variant.mean_reward)
        counts = f"{variant.completed} scored, {variant.pending} left, mean {mean}"
        print_line(f"  variant  {name}: {counts}")
    for error, count in list(view.errors.items())[:3]:
        print_line(f"  error    {count} x {fmt.shorten(error, 200)}")
    for line in _running(view):
        print_line(f"  {line}")
    for url, limit in view.model_limits.items():
        print_line(f"  limit    {limit} rollouts on {url}, which answered 429 or was overloaded")
    if view.pause is not None:
        by = view.pause.get("by") or "unknown"
        paused = view.pause.get("name") or view.pause.get("scope")
        print_line(f"  paused   {paused}, by {by}: {view.pause.get('reason') or 'no reason given'}")
        for line in _held(view.pause):
            print_line(f"  held     {line}")
    if view.stopped is not None:
        print_line(f"  stopped  {view.stopped}")
    if view.process is None and view.pending:
        command = shlex.join(["bench", "job", "resume", str(view.directory)])
        print_line(f"continue it with: {command}")


def _running(view: JobView) -> Iterator[str]:
    for each in view.running[:_MAX_RUNNING]:
        age = "" if each.started_at is None else f"  {time.time() - each.started_at:.0f}s"
        state = "queued   " if each.is_queued else "running  "
        state = state if view.process else "cut short "
        yield f"{state}{each.slot}  attempt {each.attempt}{age}  {each.rollout}"
    more = len(view.running) - _MAX_RUNNING
    if more > 0:
        yield f"         and {more} more; --json has all of them"


def _held(pause: Mapping[str, Any]) -> list[str]:
    """Return what a pause with --now or --keep does to the rollouts that ran."""
    lines: list[str] = []
    if "held" in pause:
        lines.append(f"{pause['held']} rollouts stand still")
    if pause.get("freezing"):
        lines.append(f"{pause['freezing']} rollouts are about to stand still")
    if "saved" in pause:
        lines.append(f"{pause['saved']} rollouts are saved; `bench job resume` continues them")
    if pause.get("saving"):
        lines.append(f"{pause['saving']} rollouts run until they can be saved")
    for reason, count in dict(pause.get("running_on") or {}).items():
        lines.append(f"{count} rollouts run on to their end: {reason}")
    return lines


def _signs_of_life(view: JobView) -> Iterator[str]:
    """Yield when the driver of a job that has not ended gave its last sign of life."""
    beat = view.heartbeat
    if beat is None or beat.has_ended or (view.process is None and view.status != "running"):
        return
    age, driver = f"{beat.age_sec:.0f} s", f"process {beat.process} on {beat.host}"
    if not beat.is_late:
        yield f"heartbeat {age} ago" + ("" if view.process else f" by {driver}")
    elif view.process is None:
        yield f"no heartbeat for {age}: {driver} has ended"
    else:
        yield f"no heartbeat for {age}: process {view.process} is stopped, or waits for a CPU"


def _line(view: JobView) -> str:
    running = len(view.running)
    parts = [f"{view.completed} of {view.slots} scored"]
    if running or view.process:
        parts.append(f"{running} {'running' if view.process else 'cut short'}")
    parts += [f"{view.pending - running} waiting", f"{view.failed} failed"]
    if view.pruned:
        parts.append(f"{view.pruned} given up")
    parts.append(f"mean reward {fmt.reward(view.mean_reward)}")
    costs = [view.measured.get(name) for name in ("cost_usd", "sandbox_usd", "judge_usd")]
    if any(cost is not None for cost in costs):
        total = sum(cost or 0 for cost in costs)
        parts.append(f"{total:.4g} USD")
    return ", ".join(parts)
