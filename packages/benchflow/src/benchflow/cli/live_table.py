"""The live table of a job, on the terminal behind standard error."""

import time
from collections.abc import Mapping

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .live import Row
from .output import stderr, visible


class LiveTable:
    """Shows how far a job is, and `rows` as they are whenever it is drawn."""

    def __init__(self, rows: Mapping[str, Row]) -> None:
        self._rows = rows
        self._progress = Progress(
            TextColumn("[bold]rollouts"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        )
        self._task = self._progress.add_task("rollouts", total=None)
        self._live = Live(self, console=stderr(), refresh_per_second=8, transient=True)

    def start(self) -> None:
        """Begin to draw, in a thread, until `stop`."""
        self._live.start()

    def stop(self) -> None:
        """Wipe the table away. Idempotent."""
        self._live.stop()

    def count(self, done: int, total: int) -> None:
        """Take how many rollouts are over, and of how many."""
        self._progress.update(self._task, total=total, completed=done)

    def print(self, line: str) -> None:
        """Print a line above the table; the terminal sees no command in it."""
        self._live.console.print(visible(line))

    def __rich__(self) -> Group:
        table = Table.grid(padding=(0, 2))
        for row in list(self._rows.values()):
            age = time.monotonic() - row.began
            cells = (row.slot.task.id, row.phase, f"{row.steps} steps", f"{age:.0f}s")
            table.add_row(*map(visible, cells), visible(row.last[:60]), style="dim")
        return Group(self._progress, table)
