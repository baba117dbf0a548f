"""Follows the files of jobs: the plan, the record, and whether a process runs the job."""

import json
import time
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Final

from .database import IndexWriter
from .follow_runs import RunFollower
from .job_database import JobDatabaseChanges
from .job_files import JOB_FILES, JobFacts, RecordMark, read_plan, read_record, record_stamps
from .liveness import FileUse
from .stat_of import NO_FILE, FileStamp, stamp_of

_REST: Final = 10
"""A record that took a second to read is read again after this many seconds."""
_STORE: Final = """
INSERT OR REPLACE INTO jobs (name, status, is_live, planned, pending, pruned, stopped, pause,
limits, variants, baseline, created, problem, files, mark)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""

_Stamps = tuple[FileStamp, ...]


class JobFollower:
    """The jobs of the index. Each call belongs into a transaction of the writer."""

    def __init__(
        self,
        writer: IndexWriter,
        jobs_dir: Path,
        runs: RunFollower,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Continue from the rows that the index has."""
        self._writer, self._jobs_dir, self._runs, self._clock = writer, jobs_dir, runs, clock
        rows = writer.rows("SELECT name, files, mark, is_live FROM jobs WHERE files <> '[]'")
        self._seen: dict[str, tuple[_Stamps, bool]] = {
            name: (tuple(_stamp(each) for each in json.loads(files)), bool(is_live))
            for name, files, _, is_live in rows
        }
        self._marks = {name: _mark(mark) for name, _, mark, _ in rows}
        self._next: dict[str, float] = {}
        self._fleet: dict[str, JobFacts] = {}

    @property
    def names(self) -> list[str]:
        """The jobs of the index."""
        return list(self._seen)

    def follow(self, job: str, use: FileUse, *, waits: bool) -> bool:
        """Read what is new of a job. Return False if its directory is gone.

        With `waits`, a large record is not read again at once.
        """
        directory = self._jobs_dir / job
        files = tuple(stamp_of(directory / name) for name in JOB_FILES)
        stamps = (*files, *record_stamps(directory))
        lock = stamp_of(directory / ".lock")
        is_live = lock != NO_FILE and use(lock[0], lock[1] / 1e9)
        if self._seen.get(job) == (stamps, is_live):
            return True
        if not directory.is_dir():
            self._writer.run("DELETE FROM jobs WHERE name = ?", (job,))
            self._seen.pop(job, None)
            if (recorded := self._fleet.get(job)) is not None:
                self._write(job, recorded, RecordMark(), (), is_live=self._runs_in_fleet(job))
            return False
        began = self._clock()
        if waits and began < self._next.get(job, 0.0):
            return True
        facts, mark = JobFacts(), self._marks.get(job, RecordMark())
        if stamps[len(files)] != NO_FILE:
            mark = read_record(directory, mark, facts, is_live=is_live)
        elif job in self._fleet:
            facts = self._fleet[job]
        if facts.planned is None:
            read_plan(directory, facts)
        self._store(job, facts, mark, stamps, is_live=is_live)
        for name, attempt in facts.attempts.items():
            self._runs.set_attempt((job, name), attempt)
        self._next[job] = began + _REST * (self._clock() - began)
        return True

    def follow_fleet(self, changes: JobDatabaseChanges) -> None:
        """Take the records of a fleet. A job with a record of its own in its directory has that.

        A row of a job that is not in the fleet any more, and has no directory, is deleted.
        """
        for job, facts in changes.jobs.items():
            stamps, is_live = self._seen.get(job, ((), False))
            if stamps and stamps[len(JOB_FILES)] != NO_FILE:
                continue
            self._fleet[job] = facts
            if stamps:
                self._store(job, facts, self._marks[job], stamps, is_live=is_live)
            else:
                self._write(job, facts, RecordMark(), (), is_live=self._runs_in_fleet(job))
            for name, attempt in facts.attempts.items():
                self._runs.set_attempt((job, name), attempt)
        for (job,) in self._writer.rows("SELECT name FROM jobs WHERE files = '[]'"):
            if job not in changes.names:
                self._fleet.pop(job, None)
                self._writer.run("DELETE FROM jobs WHERE name = ?", (job,))
                self._runs.forget_record(job)

    def _runs_in_fleet(self, job: str) -> bool:
        """Return whether the record of a fleet says that a job runs: nobody here sees its lock."""
        return job in self._fleet and self._fleet[job].status == "running"

    def _store(
        self, job: str, facts: JobFacts, mark: RecordMark, stamps: _Stamps, *, is_live: bool
    ) -> None:
        runs = is_live or self._runs_in_fleet(job)
        self._write(job, facts, mark, stamps, is_live=runs)
        self._seen[job] = (stamps, is_live)
        self._marks[job] = mark

    def _write(
        self, job: str, facts: JobFacts, mark: RecordMark, stamps: _Stamps, *, is_live: bool
    ) -> None:
        self._writer.run(
            _STORE,
            (
                job,
                facts.status,
                is_live,
                facts.planned,
                facts.pending,
                facts.pruned,
                facts.stopped,
                facts.pause,
                facts.limits,
                facts.variants,
                facts.baseline,
                facts.created,
                facts.problem,
                json.dumps(stamps),
                json.dumps(astuple(mark)),
            ),
        )


def _stamp(stored: list[int]) -> FileStamp:
    inode, written, size = stored
    return inode, written, size


def _mark(stored: str) -> RecordMark:
    stamps, *numbers = json.loads(stored)
    return RecordMark(tuple(_stamp(each) for each in stamps), *numbers)
