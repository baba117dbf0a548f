"""Reads of the database of monitor mode, for pages and commands."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path

from benchflow_store.database.connection import Row
from benchflow_traces import LogRecord, Span

from .alerts import silence
from .database import MonitorDatabase


class MonitorReader:
    """One connection that several threads share."""

    def __init__(self, database: MonitorDatabase) -> None:
        self._database = database
        self._lock = threading.Lock()

    def query(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        """Return the rows of one SELECT."""
        with self._lock:
            return self._database.query(sql, values)

    @property
    def has_evals(self) -> bool:
        """Whether the database has evals beside production."""
        with self._lock:
            if not self._database.has_evals:
                return False
            return bool(self._database.query("SELECT 1 FROM monitor_evals LIMIT 1"))

    def conversation_of(self, rollout_id: str) -> tuple[list[Span], list[LogRecord], set[str]]:
        """Return the stored spans, log records and traces of a rollout."""
        sql = "SELECT trace FROM monitor_spans WHERE conversation = ? OR trace = ? LIMIT 1"
        with self._lock:
            rows = self._database.query(sql, (rollout_id, rollout_id))
            return self._database.conversation_of(rows[0][0]) if rows else ([], [], set())

    def silence(self, rule: str, group: str, until: float, author: str, reason: str) -> None:
        """Send no alert of a rule and a group (`*`: each group) until a time."""
        with self._lock:
            silence(self._database, rule, group, until, author, reason)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._database.close()


def default_database() -> Path:
    """Return the database of this user: below `$XDG_DATA_HOME`, or `~/.local/share`."""
    base = os.environ.get("XDG_DATA_HOME") or ""
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "share"
    return root / "benchflow" / "monitor.db"
