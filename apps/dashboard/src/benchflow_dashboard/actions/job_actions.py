"""Actions on a job: what each would do, and the order or the command that carries it out."""

import platform
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from benchflow_contracts import BenchFlowError, StoreError, UsageError
from benchflow_jobs import JobView, job_view, orders
from benchflow_jobs.control_socket import JobNotRunningError, running_process, send_order
from benchflow_jobs.heartbeat import Heartbeat, read_heartbeat

JobAction = Literal["pause", "pause-now", "pause-keep", "resume", "resize", "cancel"]
JOB_ACTIONS: Final[tuple[JobAction, ...]] = get_args(JobAction)
TITLES: Final[Mapping[JobAction, str]] = {
    "pause": "Pause",
    "pause-now": "Pause and freeze",
    "pause-keep": "Pause and save",
    "resume": "Resume",
    "resize": "Resize",
    "cancel": "Cancel",
}
_REASON: Final = 300
_SLOTS: Final = re.compile("[1-9][0-9]{0,5}")


class JobElsewhereError(UsageError):
    """The process of the job is on another machine, which the control channel does not reach."""


class JobStateError(UsageError):
    """The state of the job does not allow the action."""


@dataclass(frozen=True, slots=True)
class JobChoices:
    """What the form of an action gives."""

    reason: str = ""
    slots: int | None = None

    @classmethod
    def of(cls, action: JobAction, form: Mapping[str, object]) -> "JobChoices":
        """Read a form.

        Raises:
            UsageError: A number is missing or wrong.
        """
        slots = str(form.get("concurrency", "")).strip()
        if action == "resize" and not _SLOTS.fullmatch(slots):
            raise UsageError(
                f"the concurrency {slots[:20]!r} is not a number from 1 to 999999",
                hint="give the number of rollouts that run at once",
            )
        reason = " ".join(str(form.get("reason", "")).split())[:_REASON]
        return cls(reason, int(slots) if action == "resize" else None)


@dataclass(frozen=True, slots=True)
class JobPlace:
    """The job's directory, and the process that runs the job on this machine."""

    directory: Path
    process: int | None
    refusal: BenchFlowError | None = None
    """Why an order cannot reach the job. A job that nothing runs can still be resumed."""
    can_resume: bool = False
    """Whether `bench job resume` on this machine may run the rest of the job."""


def find_place(directory: Path) -> JobPlace:
    """Return where a job runs. A failure becomes the refusal."""
    try:
        return JobPlace(directory, running_process(directory))
    except JobNotRunningError:
        pass
    except (UsageError, StoreError) as unreachable:
        return JobPlace(directory, None, unreachable)
    heartbeat = read_heartbeat(directory)
    if heartbeat is not None and _is_elsewhere(heartbeat):
        return JobPlace(directory, None, _elsewhere(directory, heartbeat))
    reason = "its process was killed" if heartbeat and not heartbeat.has_ended else "it has ended"
    error = JobNotRunningError(f"no process runs job {directory.name!r}: {reason}")
    return JobPlace(directory, None, error, can_resume=True)


def _is_elsewhere(heartbeat: Heartbeat) -> bool:
    return heartbeat.host != platform.node() and not heartbeat.has_ended


def _elsewhere(directory: Path, heartbeat: Heartbeat) -> JobElsewhereError:
    late = ", and its heartbeat is late" if heartbeat.is_late() else ""
    return JobElsewhereError(
        f"job {directory.name!r} runs on another machine: {heartbeat.host!r}, process"
        f" {heartbeat.process}{late}",
        hint=f"give the order on {heartbeat.host!r}; if that machine is gone for good, run"
        f" `bench job resume` here in a terminal",
    )


def read_state(directory: Path) -> JobView | None:
    """Return the state of a job by its record; `None` if the record cannot be read."""
    try:
        return job_view(directory)
    except BenchFlowError:
        return None


def check_state(action: JobAction, place: JobPlace, state: JobView | None) -> None:
    """Refuse an action that cannot work now.

    Raises:
        BenchFlowError: The reason, with a hint. `JobElsewhereError`, `JobNotRunningError` and
            `JobStateError` are such reasons.
    """
    if place.process is None:
        if action == "resume" and place.can_resume:
            if state is not None and not state.pending and not state.failed:
                raise JobStateError(
                    f"job {place.directory.name!r} has nothing left to run",
                    hint="`bench job extend` adds replications, tasks or variants",
                )
            return
        assert place.refusal is not None, "a job without a process has a refusal"
        raise place.refusal
    if action == "resume" and state is not None and state.pause is None:
        raise JobStateError(
            f"job {place.directory.name!r} runs and is not paused", hint="load the page again"
        )


def command_of(action: JobAction, directory: Path, choices: JobChoices) -> tuple[str, ...]:
    """Return the words of the command that does the same."""
    verb, *flags = {
        "pause": ["pause"],
        "pause-now": ["pause", "--now"],
        "pause-keep": ["pause", "--keep"],
        "resume": ["resume"],
        "resize": ["set", "--concurrency", str(choices.slots or "N")],
        "cancel": ["cancel"],
    }[action]
    reason = ["--reason", choices.reason] if choices.reason and verb == "pause" else []
    return ("bench", "job", verb, str(directory), *flags, *reason)


def order_of(action: JobAction, choices: JobChoices, by: str) -> orders.Order:
    """Return the order to the process of a job. `by` is the user for the job's record."""
    who = f"{by} in the dashboard"
    match action:
        case "pause":
            return orders.Pause(by=who, reason=choices.reason)
        case "pause-now":
            return orders.Pause(by=who, reason=choices.reason, now=True)
        case "pause-keep":
            return orders.Pause(by=who, reason=choices.reason, keep=True)
        case "resume":
            return orders.Resume(by=who)
        case "resize":
            return orders.SetLimits(by=who, slots=choices.slots)
        case "cancel":
            return orders.Cancel(by=f"cancel by {who}")


def give_order(action: JobAction, directory: Path, choices: JobChoices, by: str) -> str:
    """Give an order through the control socket of a job, and return the reply.

    Raises:
        UsageError: The job does not accept the order, or no process runs the job.
        StoreError: The process does not answer.
    """
    reply = send_order(directory, order_of(action, choices, by))
    if not reply.ok:
        raise JobStateError(reply.message, hint=reply.hint)
    return reply.message


def resume_words(directory: Path) -> tuple[str, ...]:
    """Return the words after `bench` that run the rest of a job that no process runs."""
    return ("job", "resume", str(directory), "--quiet")


def in_words(command: tuple[str, ...]) -> str:
    """Return a command as a line for a shell."""
    return shlex.join(command)
