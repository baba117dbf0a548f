"""Show a job on standard error: a live table on a terminal, else plain lines or JSON."""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from benchflow_contracts import Completion, Event, RolloutRecord

from . import format as fmt
from .job_progress import ProgressTracker, in_force
from .output import note

if TYPE_CHECKING:
    from benchflow_jobs.job_record import JobLimits
    from benchflow_store.database import PlannedSlot

    from .live_table import LiveTable

ProgressForm = Literal["auto", "json"]


class LiveJob:
    """A JobListener. Use it as a context manager around `run_job`."""

    def __init__(self, *, quiet: bool = False, form: ProgressForm = "auto") -> None:
        """Prepare. `quiet` turns off the form `auto`, and not one that was asked for."""
        self.progress = ProgressTracker()
        self._is_json = form == "json"
        self._quiet = quiet or self._is_json
        is_table = sys.stderr.isatty() and not self._quiet
        self._table = _open_table(self.progress) if is_table else None

    def __enter__(self) -> Self:
        if self._table is not None:
            self._table.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._table is not None:
            self._table.stop()

    def say(self, text: str) -> None:
        """Print a sentence for people, also if progress is quiet."""
        if self._is_json:
            self._emit("message", text=text)
        elif self._table is not None:
            self._table.print(text)
        else:
            note(text)

    def planned(
        self, job: str, slots: "Sequence[PlannedSlot]", rewards: Mapping[int, float]
    ) -> None:
        """Set the name and the size of the job."""
        self.progress.planned(job, slots, rewards)
        self._emit("planned", job=job)
        if rewards:
            self._tell(f"resuming: {len(rewards)} of {len(slots)} rollouts are already scored")

    def limited(self, limits: "JobLimits") -> None:
        """Print which limits have changed."""
        changes = self.progress.limited(limits)
        self._emit("limits", changes=changes, in_force=in_force(limits))
        for change in changes:
            self._tell(change)

    def extended(self, total: int) -> None:
        """Set the size of a job that was extended."""
        self.progress.total = total
        self._emit("extended")
        self._tell(f"extended: the job has {total} rollouts")

    def started(self, slot: "PlannedSlot") -> Callable[[Event], None]:
        """Add a row; return the function that receives its events. Only a table shows them."""
        row = self.progress.started(slot)
        self._emit("started", slot=slot.name)
        return _ignore_event if self._table is None else row.progress.receive

    def attempted(self, slot: "PlannedSlot", completion: Completion) -> None:
        """Count an attempt that has ended."""
        self.progress.attempted(completion)
        error = completion.error
        self._emit(
            "attempted",
            slot=slot.name,
            rollout=completion.rollout,
            attempt=completion.attempt,
            status=completion.status,
            boundary=None if error is None else error.boundary,
            measured=dict(completion.measured),
        )

    def finished(self, slot: "PlannedSlot", record: RolloutRecord) -> None:
        """Remove the row and print one line with the result."""
        seconds = self.progress.finished(slot, record)
        if self._is_json:
            self._emit_result(slot, record, seconds)
        self._tell(
            f"[{self.progress.done}/{self.progress.total}] {_name(slot)}  "
            f"reward {fmt.reward(record.reward)}  {record.steps} steps  {seconds:.1f}s  "
            f"{fmt.outcome(record)}"
        )

    def _tell(self, line: str) -> None:
        if not self._quiet:
            self.say(line)

    def _emit_result(self, slot: "PlannedSlot", record: RolloutRecord, seconds: float) -> None:
        eta = self.progress.eta()
        self._emit(
            "finished",
            slot=slot.name,
            rollout=record.rollout_id,
            status=record.status,
            reward=record.reward,
            outcome=fmt.outcome(record),
            steps=record.steps,
            seconds=round(seconds, 3),
            eta_sec=None if eta is None else round(eta[0], 1),
            eta_error_sec=None if eta is None else round(eta[1], 1),
        )

    def _emit(self, event: str, **values: object) -> None:
        """Print an event as one line of JSON, if this is the form of the progress."""
        if self._is_json:
            counts = {"done": self.progress.done, "total": self.progress.total}
            line = {"event": event, "time": round(time.time(), 3), **counts, **values}
            sys.stderr.write(json.dumps(line) + "\n")
            sys.stderr.flush()


def _name(slot: "PlannedSlot") -> str:
    """Return the task, and the variant if there are several."""
    return slot.task if slot.variant == "default" else f"{slot.task}  {slot.variant}"


def _ignore_event(event: Event) -> None:
    """Receive an event that nothing shows."""


def _open_table(progress: ProgressTracker) -> "LiveTable":
    from .live_table import LiveTable

    return LiveTable(progress)
