"""Follows rollouts on standard error: a live table on a terminal, else plain lines."""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from benchflow_contracts import Branched, Event, PhaseEntered, StepFinished
from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchflow.job.options import Slot
from benchflow.records import RolloutRecord

from . import format as fmt
from .narrate import one_line
from .output import note, stderr, visible


class _Row:
    """What is known of one running rollout."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.began = time.monotonic()
        self.phase = "setup"
        self.steps = 0
        self.last = ""

    def receive(self, event: Event) -> None:
        if isinstance(event, PhaseEntered):
            self.phase = event.phase
        elif isinstance(event, Branched) and event.record.children:
            self.phase = f"fork x{event.record.children}"
        elif isinstance(event, StepFinished):
            self.steps += 1
            self.last = one_line(event.step)


class LiveJob:
    """A JobListener. Use it as a context manager around `run_job`."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._tty = sys.stderr.isatty() and not quiet
        self._rows: dict[str, _Row] = {}
        self._done = 0
        self._total = 0
        self._rewards: list[float] = []
        self._progress = Progress(
            TextColumn("[bold]rollouts"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        )
        self._task = self._progress.add_task("rollouts", total=None)
        self._live = Live(self, console=stderr(), refresh_per_second=8, transient=True)

    def __enter__(self) -> Self:
        if self._tty:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._tty:
            self._live.stop()

    def planned(self, slots: list[Slot], done: int) -> None:
        """Take the size of the job."""
        self._total, self._done = len(slots), done
        self._progress.update(self._task, total=len(slots), completed=done)
        if done and not self._quiet:
            note(f"resuming: {done} of {len(slots)} rollouts are already scored")

    def started(self, slot: Slot) -> Callable[[Event], None]:
        """Open a row and return what feeds it."""
        row = self._rows[slot.id] = _Row(slot)
        return row.receive

    def finished(self, slot: Slot, record: RolloutRecord) -> None:
        """Close the row and print one line of result."""
        row = self._rows.pop(slot.id, None)
        self._done += 1
        self._progress.update(self._task, completed=self._done)
        if self._quiet:
            return
        took = time.monotonic() - row.began if row else 0.0
        line = (
            f"[{self._done}/{self._total}] {record.task_id}  reward {fmt.reward(record.reward)}"
            f"  {record.steps} steps  {took:.1f}s  {fmt.outcome(record)}"
        )
        if self._tty:
            self._live.console.print(visible(line))
        else:
            note(line)

    def __rich__(self) -> Group:
        table = Table.grid(padding=(0, 2))
        for row in self._rows.values():
            age = time.monotonic() - row.began
            cells = (row.slot.task.id, row.phase, f"{row.steps} steps", f"{age:.0f}s")
            table.add_row(*map(visible, cells), visible(row.last[:60]), style="dim")
        return Group(self._progress, table)
