"""The live table of a job, on the terminal behind standard error."""

import shutil
import time
from collections.abc import Mapping

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from .format import shorten
from .layout import pack
from .live import Row
from .output import printable, stderr, visible


class LiveTable:
    """Shows the progress of a job, and the state of each running rollout in `rows`."""

    def __init__(self, rows: Mapping[str, Row]) -> None:
        self._rows = rows
        self._progress = Progress(
            TextColumn("[bold]rollouts"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        )
        self._task = self._progress.add_task("rollouts", total=None)
        self._live = Live(self, console=stderr(), refresh_per_second=8, transient=True)

    def start(self) -> None:
        """Start to draw, in a thread, until `stop`."""
        self._live.start()

    def stop(self) -> None:
        """Remove the table from the terminal. Idempotent."""
        self._live.stop()

    def count(self, done: int, total: int) -> None:
        """Set the number of rollouts that have ended."""
        self._progress.update(self._task, total=total, completed=done)

    def print(self, line: str) -> None:
        """Print a line above the table, without terminal commands."""
        self._live.console.print(visible(line), soft_wrap=True)

    def __rich__(self) -> Group:
        return Group(self._progress, *(_lines(row) for row in list(self._rows.values())))


def _lines(row: Row) -> Text:
    """Return the values of a row, then the start of its last action."""
    width = max(shutil.get_terminal_size().columns, 1)
    age = time.monotonic() - row.started_at
    cells = (row.slot.task, row.progress.phase, f"{row.progress.steps} steps", f"{age:.0f}s")
    lines = pack([Text(printable(cell), style="dim") for cell in cells], width)
    left = width - lines[-1].cell_len - 2
    if row.progress.last and left > 0:
        lines[-1].append(
            "  " + shorten(printable(row.progress.last.replace("\n", " ")), min(left, 60)), "dim"
        )
    shown = Text("\n").join(lines)
    shown.no_wrap, shown.overflow = False, "fold"
    return shown
