"""The live table of a job, on the terminal behind standard error."""

import shutil
import time

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from .format import shorten
from .job_progress import ProgressTracker, Row, summary
from .layout import pack
from .output import printable, stderr, visible

_LONGEST_PART = 200


class LiveTable:
    """Shows the numbers of a job, and the state of each running rollout."""

    def __init__(self, job: ProgressTracker) -> None:
        self._job = job
        self._bar = Progress(
            TextColumn("[bold]rollouts"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        )
        self._task = self._bar.add_task("rollouts", total=None)
        self._live = Live(self, console=stderr(), refresh_per_second=8, transient=True)

    def start(self) -> None:
        """Start to draw, in a thread, until `stop`."""
        self._live.start()

    def stop(self) -> None:
        """Remove the table from the terminal. Idempotent."""
        self._live.stop()

    def print(self, line: str) -> None:
        """Print a line above the table, without terminal commands."""
        self._live.console.print(visible(line), soft_wrap=True)

    def __rich__(self) -> Group:
        width = max(shutil.get_terminal_size().columns, 1)
        self._bar.update(self._task, total=self._job.total or None, completed=self._job.done)
        rows = [_lines(row, self._job.clock(), width) for row in list(self._job.running.values())]
        return Group(self._bar, summary_text(self._job, width), *rows)


def summary_text(job: ProgressTracker, width: int) -> Text:
    """Return the numbers of a job on as few lines as possible."""
    parts = (shorten(printable(_one_line(part)), _LONGEST_PART) for part in summary(job))
    return _folded(pack(map(Text, parts), width))


def _lines(row: Row, now: float, width: int) -> Text:
    """Return the values of a row, then the start of its last action."""
    age = now - row.started_at
    doing = shorten(_one_line(row.progress.text(time.time())), 60)
    cells = (row.slot.task, doing, f"{row.progress.steps} steps", f"{age:.0f}s")
    lines = pack([Text(printable(cell), style="dim") for cell in cells], width)
    left = width - lines[-1].cell_len - 2
    if row.progress.last and left > 0:
        last = printable(_one_line(row.progress.last))
        lines[-1].append("  " + shorten(last, min(left, 60)), "dim")
    return _folded(lines)


def _folded(lines: list[Text]) -> Text:
    """Return lines that the console folds and does not cut."""
    shown = Text("\n").join(lines)
    shown.no_wrap, shown.overflow = False, "fold"
    return shown


def _one_line(text: str) -> str:
    return text.replace("\n", " ")
