"""The thread that follows a jobs directory while the dashboard serves."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import apsw
from benchflow_contracts import StoreError

from .database import IndexWriter
from .follow import Follower
from .job_database import JobDatabasePoller

_PASS_SEC: Final = 0.2
"""The longest transaction: the follower then lets requests run."""
_BREATH_SEC: Final = 0.02
_LIVE_SEC: Final = 0.25
_QUIET_SEC: Final = 1.0
_RETRY_SEC: Final = 5.0

_logger = logging.getLogger(__name__)


class Watcher:
    """Follows in a thread of its own. A fault of the index never reaches a run or a request."""

    def __init__(self, path: Path, jobs_dir: Path, fleet: str | None = None) -> None:
        """Create the index. `start` begins to follow. `fleet` is the URL of a database of jobs.

        Raises:
            StoreError: The file of the index cannot be created.
        """
        self._path, self._jobs_dir = path, jobs_dir
        self._writer: IndexWriter | None = IndexWriter(path, jobs_dir)
        self._fleet = None if fleet is None else JobDatabasePoller(fleet)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._callbacks: list[Callable[[], None]] = []
        self.problem: str | None = None
        """Why the index does not follow now."""
        self.updated: float | None = None
        """The time of the last whole pass, in seconds since the epoch."""
        self.is_behind = True
        """Whether rollouts are left that nobody has read."""

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` in the thread of the watcher after each pass that changed something."""
        self._callbacks.append(callback)

    def start(self) -> None:
        """Begin to follow."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="index", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop after the pass that runs, and close the file. Idempotent."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._close()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._follow()
            except Exception as error:  # noqa: BLE001 - without the thread, old pages look new
                self._note(error)
                with suppress(Exception):
                    self._close()
                self._stop.wait(_RETRY_SEC)

    def _note(self, error: Exception) -> None:
        is_expected = isinstance(error, (apsw.Error, StoreError, OSError))
        cause = str(error) if is_expected else f"{type(error).__name__}: {error}"
        self.problem = f"the index is not up to date: {cause}"
        _logger.warning("%s", self.problem, exc_info=None if is_expected else error)

    def _follow(self) -> None:
        if self._writer is None:
            self._writer = IndexWriter(self._path, self._jobs_dir)
        writer = self._writer
        if not writer.has_lock:
            # Another dashboard of this user follows the same directory into the same file.
            self.problem, self.is_behind = None, False
            self._close()
            self._report_changes_of_another()
            return
        fleet = self._fleet
        if fleet is None:
            self._update(writer, Follower(writer, self._jobs_dir))
            return
        fleet.start()
        try:
            self._update(writer, Follower(writer, self._jobs_dir, fleet=fleet.changes))
        finally:
            fleet.stop()

    def _update(self, writer: IndexWriter, follower: Follower) -> None:
        changes = -1
        while not self._stop.is_set():
            self.is_behind = follower.update(_PASS_SEC)
            self.problem = None if self._fleet is None else self._fleet.problem
            self.updated = time.time()
            if (now := writer.changes()) != changes:
                changes = now
                self._report()
            pause = _LIVE_SEC if follower.has_live else _QUIET_SEC
            self._stop.wait(_BREATH_SEC if self.is_behind else pause)

    def _report_changes_of_another(self) -> None:
        """Report what the other dashboard writes, until it is time to ask for the lock again."""
        # The types of apsw name a type that Python 3.11 does not have.
        database: Any = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            version, end = -1, time.monotonic() + _RETRY_SEC
            while not self._stop.is_set() and time.monotonic() < end:
                if (now := database.pragma("data_version")) != version:
                    version = now
                    self._report()
                self._stop.wait(_LIVE_SEC)
        finally:
            database.close(True)

    def _report(self) -> None:
        for callback in self._callbacks:
            callback()

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
