"""The jobs of a fleet: read from its database in a thread of its own, which may wait."""

import logging
import queue
import threading
from dataclasses import dataclass
from typing import Final

from benchflow_contracts import BenchFlowError
from benchflow_store.database import JobReader, Location, list_jobs

from .job_files import JobFacts, RecordMark, read_progress

_POLL_SEC: Final = 2.0
_RETRY_SEC: Final = 15.0
_STOP_SEC: Final = 1.0

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobDatabaseChanges:
    """What is new in the database of a fleet."""

    names: frozenset[str]
    """All jobs of the database."""
    jobs: dict[str, JobFacts]
    """The jobs whose record has changed."""


def no_fleet() -> list[JobDatabaseChanges]:
    """Return an empty list of jobs, so that the index deletes the rows of an earlier fleet."""
    return [JobDatabaseChanges(frozenset(), {})]


class JobDatabaseReader:
    """Reads the database of a fleet, and what has changed since the last read."""

    def __init__(self, location: Location) -> None:
        """Prepare; each read has a connection of its own."""
        self._location = location
        self._seen: dict[str, tuple[object, ...]] = {}
        self._marks: dict[str, RecordMark] = {}

    def read(self) -> JobDatabaseChanges:
        """Return what has changed. The first call returns everything.

        Raises:
            BenchFlowError: The database does not answer, or is of another version.
        """
        listed = list_jobs(self._location)
        changed: dict[str, JobFacts] = {}
        for job in listed:
            if self._seen.get(job.name) == job.stamp:
                continue
            facts = JobFacts()
            with JobReader(self._location, job.name) as reader:
                mark = self._marks.get(job.name, RecordMark())
                mark = read_progress(reader, mark, facts, is_live=None)
            # The record may be newer than the stamp: the next call then reads the job again.
            self._seen[job.name], self._marks[job.name] = job.stamp, mark
            changed[job.name] = facts
        names = frozenset(job.name for job in listed)
        for gone in self._seen.keys() - names:
            del self._seen[gone], self._marks[gone]
        return JobDatabaseChanges(names, changed)


class JobDatabasePoller:
    """Reads a fleet again and again. A server that does not answer makes no page wait."""

    def __init__(self, location: Location, *, poll_sec: float = _POLL_SEC) -> None:
        """Prepare. `start` begins to read."""
        self._location, self._poll_sec = location, poll_sec
        self._changes: queue.SimpleQueue[JobDatabaseChanges] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.problem: str | None = None
        """Why the fleet is not up to date."""

    def start(self) -> None:
        """Begin to read everything, also after `stop`."""
        self._stop, self._changes = threading.Event(), queue.SimpleQueue()
        arguments = (JobDatabaseReader(self._location), self._changes, self._stop)
        self._thread = threading.Thread(target=self._run, args=arguments, name="fleet", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop. A thread that waits for the server is left to end by itself. Idempotent."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_STOP_SEC)
            self._thread = None

    def changes(self) -> list[JobDatabaseChanges]:
        """Return what is new since the last call, without a wait."""
        found: list[JobDatabaseChanges] = []
        while not self._changes.empty():
            found.append(self._changes.get_nowait())
        return found

    def _run(
        self,
        reader: JobDatabaseReader,
        changes: "queue.SimpleQueue[JobDatabaseChanges]",
        stop: threading.Event,
    ) -> None:
        while not stop.is_set():
            try:
                changes.put(reader.read())
                self.problem = None
            except Exception as error:
                # Without the thread, old pages look new.
                is_expected = isinstance(error, BenchFlowError)
                cause = str(error) if is_expected else f"{type(error).__name__}: {error}"
                self.problem = f"the jobs of the fleet are not up to date: {cause}"
                _logger.warning("%s", self.problem, exc_info=None if is_expected else error)
            stop.wait(self._poll_sec if self.problem is None else _RETRY_SEC)
