"""The index of one jobs directory: what pages ask, and the thread that keeps it up to date."""

from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from benchflow_contracts import StoreError

from .database import IndexReaders, IndexSession, IndexWriter
from .follow import Follower
from .job_database import JobDatabaseReader
from .queries import RolloutEntry, Run, read_jobs, read_run
from .reports import Report, ReportCache
from .watcher import Watcher

_Result = TypeVar("_Result")


class Index:
    """Reads of the index. Safe to use from several threads."""

    def __init__(
        self, path: Path, jobs_dir: Path, notes: Path | None = None, fleet: str | None = None
    ) -> None:
        """Open the index at `path`, and create it if it is missing.

        `notes` is the file of the notes (default: none, so that no rollout has a label). `fleet` is
        the URL of a database of further jobs (default: none).

        Raises:
            StoreError: The file cannot be created.
        """
        self.path, self.jobs_dir = path, jobs_dir
        self.watcher = Watcher(path, jobs_dir, fleet)
        self._readers = IndexReaders(path, notes)
        self._reports = ReportCache(path, self._readers)
        # While a reader is open, SQLite needs no new file for the next one: the disk may be full.
        self.watcher.on_change(self._readers.open_one)

    @contextmanager
    def read(self) -> Generator[IndexSession]:
        """Yield one read transaction, for the functions of `queries`."""
        with self._readers.session() as session:
            yield session

    def report(self, key: Hashable, make: Callable[[IndexSession], _Result]) -> Report[_Result]:
        """Return what `make` reads in one transaction; the same until the index changes.

        `make` must read nothing but the index, so no notes and no clock.
        """
        return self._reports.read(key, make)

    def find(self, prefix: str, job: str | None = None) -> list[RolloutEntry]:
        """Return the rollouts with the id `prefix`, else those whose ids begin with it.

        At most 20, the newest first.
        """
        with self.read() as session:
            runs = read_run(session, prefix, job)
        return [self.entry(run) for run in runs]

    def live_jobs(self) -> list[Path]:
        """Return the directories of the jobs that a process runs, the newest first."""
        with self.read() as session:
            jobs = read_jobs(session)
        return [self.jobs_dir / job.name for job in jobs if job.is_live]

    def entry(self, run: Run) -> RolloutEntry:
        """Return a run with its directory."""
        return RolloutEntry(**asdict(run), directory=self.jobs_dir / run.job / run.id)

    def close(self) -> None:
        """Stop the thread and close all connections."""
        self.watcher.stop()
        self._reports.close()
        self._readers.close()


def update_index(path: Path, jobs_dir: Path, fleet: str | None = None) -> None:
    """Bring the index up to date. A dashboard that runs does it already.

    Raises:
        StoreError: The file cannot be written, or the database of the fleet does not answer.
    """
    writer = IndexWriter(path, jobs_dir)
    try:
        if writer.has_lock:
            _follower(writer, jobs_dir, fleet).update()
    finally:
        writer.close()


def reindex(path: Path, jobs_dir: Path, fleet: str | None = None) -> int:
    """Build the index anew. Return the number of rollouts.

    Raises:
        StoreError: A dashboard uses the index, the file cannot be written, or the database of the
            fleet does not answer.
    """
    writer = IndexWriter(path, jobs_dir, fresh=True)
    try:
        if not writer.has_lock:
            raise StoreError(
                f"a dashboard that runs keeps the index {str(path)!r} up to date",
                hint="stop that dashboard, or give --index",
            )
        _follower(writer, jobs_dir, fleet).update()
        return int(writer.rows("SELECT COUNT(*) FROM runs")[0][0])
    finally:
        writer.close()


def _follower(writer: IndexWriter, jobs_dir: Path, fleet: str | None) -> Follower:
    if fleet is None:
        return Follower(writer, jobs_dir)
    reader = JobDatabaseReader(fleet)
    return Follower(writer, jobs_dir, fleet=lambda: [reader.read()])
