"""`bench job`: orders to a job, from any terminal of its owner."""

import getpass
import os
import re
import select
import signal
import time
import tomllib
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from benchflow_contracts import StoreError, UsageError
from benchflow_jobs import orders as order
from benchflow_jobs.control_socket import JobNotRunningError, running_process, send_order
from benchflow_jobs.offline import change_job
from cyclopts import Parameter
from pydantic import ValidationError

from .flags import DEFAULT_JOBS, JobsDir, Json
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
_FLAGS = {"slots": "--concurrency"}
_Fields = TypeVar("_Fields", order.Extend, order.SetLimits)


def pause(
    job: str,
    *,
    variant: Variant = None,
    endpoint: Endpoint = None,
    reason: str = "",
    now: bool = False,
    keep: bool = False,
    jobs_dir: JobsDir = DEFAULT_JOBS,
    json: Json = False,
) -> int:
    """Start no further rollout of a job, a variant or a model endpoint. What runs continues.

    Examples:
        bench job pause nightly --reason "the endpoint is being updated"
        bench job pause nightly --variant large
        bench job pause nightly --now
        bench job pause nightly --keep

    Args:
        job: Job: its directory, its name, or a unique start of its name.
        reason: Reason, which `bench job status` shows.
        now: Freeze what runs, too, until a resume. Its time limits stand still.
        keep: Save each running rollout at its next turn or question, and end it. A resume continues
            it.
    """
    scope, name = scope_of(variant, endpoint)
    if now and keep:
        raise UsageError("--now and --keep were both given", hint="give one of them")
    sent = order.Pause(by=user_name(), scope=scope, name=name, reason=reason, now=now, keep=keep)
    return give_order(find_job(job, jobs_dir), sent, json=json)


def drain(job: str, *, jobs_dir: JobsDir = DEFAULT_JOBS, json: Json = False) -> int:
    """Let what runs end, start nothing more, and end the job. It can be resumed.

    Examples:
        bench job drain nightly

    Args:
        job: Job: its directory, its name, or a unique start of its name.
    """
    return give_order(find_job(job, jobs_dir), order.Drain(by=f"drain by {user_name()}"), json=json)


def cancel(job: str, *, jobs_dir: JobsDir = DEFAULT_JOBS, json: Json = False) -> int:
    """End what runs now, and then the job. It can be resumed.

    Examples:
        bench job cancel nightly

    Args:
        job: Job: its directory, its name, or a unique start of its name.
    """
    return give_order(
        find_job(job, jobs_dir), order.Cancel(by=f"cancel by {user_name()}"), json=json
    )


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
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return _print(order.Reply(ok=True, message="the process of the job has ended"), json=json)
    deadline = time.monotonic() + _KILL_SEC
    try:
        try:
            sent = order.Kill(by=f"kill by {user_name()}")
            message = send_order(directory, sent, timeout_sec=_KILL_SEC).message
        except (JobNotRunningError, StoreError) as error:
            message = str(error)
        if not select.select([handle], [], [], max(0, deadline - time.monotonic()))[0]:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            message += f"; killed process {process}; the next resume removes its sandboxes"
    finally:
        os.close(handle)
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
    sent = order.Requeue(by=user_name(), slots=slot, errors=error)
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
    if replications is None and not tasks and not more:
        raise UsageError(
            "nothing to add was given", hint="give --replications, --tasks or --variants"
        )
    sent = _order(order.Extend, replications=replications, tasks=tasks, variants=more)
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
        if not url or not re.fullmatch("[1-9][0-9]{0,8}", number):
            raise UsageError(f"--endpoint {text!r} is not URL=NUMBER", hint="for example URL=8")
        endpoints[url] = int(number)
    if concurrency is cost_usd is tokens is None and not endpoints:
        raise UsageError(
            "no limit was given", hint="give --concurrency, --endpoint, --cost-usd or --tokens"
        )
    sent = _order(
        order.SetLimits,
        slots=concurrency,
        endpoints=endpoints,
        cost_usd=cost_usd,
        tokens=tokens,
    )
    return give_order(find_job(job, jobs_dir), sent, json=json)


async def _change(
    directory: Path, sent: order.Requeue | order.Extend, *, trust: bool = False, json: bool
) -> int:
    try:
        running_process(directory)
    except JobNotRunningError:
        return _print(await change_job(directory, sent, trust=trust), json=json)
    return give_order(directory, sent, json=json)


def _order(kind: type[_Fields], **fields: object) -> _Fields:
    """Return an order with the values of flags.

    Raises:
        UsageError: A value is out of range.
    """
    try:
        return kind.model_validate({"by": user_name(), **fields})
    except ValidationError as error:
        first = error.errors()[0]
        flag = _FLAGS.get(str(first["loc"][0]), f"--{first['loc'][0]}".replace("_", "-"))
        reason = first["msg"].replace("Input should", "it should")
        raise UsageError(
            f"{flag} {first['input']!r}: {reason}", hint="correct the value"
        ) from error


def give_order(directory: Path, sent: order.Order, *, json: bool) -> int:
    """Send an order to the process that runs a job; return the exit code.

    Raises:
        UsageError: No process runs the job, or the order does not fit the job.
        StoreError: The process does not answer.
    """
    return _print(send_order(directory, sent), json=json)


def _print(reply: order.Reply, *, json: bool) -> int:
    if not reply.ok:
        raise UsageError(reply.message, hint=reply.hint)
    if json:
        print_json(reply.model_dump(mode="json"))
    else:
        note(reply.message)
    return 0


def scope_of(variant: str | None, endpoint: str | None) -> tuple[order.Scope, str]:
    """Return what a pause is for.

    Raises:
        UsageError: Both were given.
    """
    if variant is not None and endpoint is not None:
        raise UsageError("--variant and --endpoint were both given", hint="give one of them")
    if variant is not None:
        return "variant", variant
    return ("job", "") if endpoint is None else ("endpoint", endpoint)


def _variants(file: Path) -> tuple[dict[str, Any], ...]:
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {str(file)!r}: {error.strerror}", hint="check it") from error
    except ValueError as error:
        raise UsageError(f"not TOML: {error}", where=str(file), hint="correct it") from error
    variants: Any = tables.get("variants")
    if set(tables) != {"variants"} or not isinstance(variants, list):
        raise UsageError(
            "it does not consist of [[variants]] alone",
            where=str(file),
            hint="docs/reference/job-toml.md shows variants",
        )
    return tuple(cast("list[dict[str, Any]]", variants))


def user_name() -> str:
    """Return the name of the user, or the number of a user without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
