"""Show running rollouts on standard error: a live table on a terminal, else plain lines."""

import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from benchflow_contracts import Event
from benchflow_store import RolloutProgress, RolloutRecord

from . import format as fmt
from .output import note

if TYPE_CHECKING:
    from benchflow_store.database import PlannedSlot

    from .live_table import LiveTable


class Row:
    """One running rollout."""

    def __init__(self, slot: "PlannedSlot") -> None:
        self.slot = slot
        self.started_at = time.monotonic()
        self.progress = RolloutProgress()


class LiveJob:
    """A JobListener. Use it as a context manager around `run_job`."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self.job: str | None = None
        """The name of the job, once the job is planned."""
        self._rows: dict[str, Row] = {}
        self._done = 0
        self._total = 0
        self._table = _open_table(self._rows) if sys.stderr.isatty() and not quiet else None

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

    def planned(self, job: str, slots: "Sequence[PlannedSlot]", done: int) -> None:
        """Set the name and the size of the job."""
        self.job = job
        self._total, self._done = len(slots), done
        if self._table is not None:
            self._table.count(done, len(slots))
        if done and not self._quiet:
            note(f"resuming: {done} of {len(slots)} rollouts are already scored")

    def extended(self, total: int) -> None:
        """Set the size of a job that was extended."""
        self._total = total
        if self._table is not None:
            self._table.count(self._done, total)

    def started(self, slot: "PlannedSlot") -> Callable[[Event], None]:
        """Add a row; return the function that receives its events."""
        row = self._rows[slot.name] = Row(slot)
        return row.progress.receive

    def finished(self, slot: "PlannedSlot", record: RolloutRecord) -> None:
        """Remove the row and print one line with the result."""
        row = self._rows.pop(slot.name, None)
        self._done += 1
        if self._quiet:
            return
        seconds = time.monotonic() - row.started_at if row else 0.0
        line = (
            f"[{self._done}/{self._total}] {_name(slot)}  reward {fmt.reward(record.reward)}"
            f"  {record.steps} steps  {seconds:.1f}s  {fmt.outcome(record)}"
        )
        if self._table is None:
            note(line)
        else:
            self._table.count(self._done, self._total)
            self._table.print(line)


def _name(slot: "PlannedSlot") -> str:
    """Return the task, and the variant if there are several."""
    return slot.task if slot.variant == "default" else f"{slot.task}  {slot.variant}"


def _open_table(rows: dict[str, Row]) -> "LiveTable":
    from .live_table import LiveTable

    return LiveTable(rows)
