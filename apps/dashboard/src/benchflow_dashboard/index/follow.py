"""Follows a jobs directory into the index. Only reads, and takes no lock that a run needs."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from .database import IndexWriter
from .discovery import Discovery, RunKey
from .follow_jobs import JobFollower
from .follow_runs import RunFollower
from .job_database import JobDatabaseChanges, no_fleet
from .liveness import FileUse, read_file_use

_SWEEP: Final = 500
"""Ended rollouts whose files are compared again in one pass."""


class Follower:
    """Brings the index up to date, in passes. One thread uses it."""

    def __init__(
        self,
        writer: IndexWriter,
        jobs_dir: Path,
        *,
        file_use: Callable[[], FileUse] = read_file_use,
        fleet: Callable[[], Iterable[JobDatabaseChanges]] = no_fleet,
    ) -> None:
        """Continue from what the index has. `fleet` returns what is new in a fleet's database."""
        self._writer, self._file_use = writer, file_use
        self._runs = RunFollower(writer, jobs_dir)
        self._jobs = JobFollower(writer, jobs_dir, self._runs)
        self._discovery = Discovery(jobs_dir, jobs=self._jobs.names, rollouts=self._runs.with_files)
        self._fleet = fleet
        self._found: list[RunKey] = []
        self._unswept: list[RunKey] = []

    @property
    def has_live(self) -> bool:
        """Whether a rollout runs."""
        return self._runs.has_live

    def update(self, seconds: float | None = None) -> bool:
        """Bring the index up to date (default: however long it takes).

        Return whether work is left. Results come before logs, so that lists are soon complete.

        Raises:
            apsw.Error: The index cannot be written.
            BenchFlowError: The fleet, if `fleet` reads at once, does not answer.
        """
        end = None if seconds is None else time.monotonic() + seconds
        changes = list(self._fleet())
        with self._writer.transaction():
            use = self._file_use()
            self._found += self._discovery.find_new()
            for job in sorted(self._discovery.jobs):
                if not self._jobs.follow(job, use, waits=seconds is not None):
                    self._discovery.forget_job(job)
            for each in changes:
                self._jobs.follow_fleet(each)
            while self._found:
                if _is_over(end):
                    return True
                self._runs.add(self._found.pop(), use)
            self._sweep(everything=seconds is None)
            is_left = self._follow_logs(use, end)
            for key in self._discovery.rollouts - self._runs.with_files:
                self._discovery.forget(key)
        return is_left

    def _follow_logs(self, use: FileUse, end: float | None) -> bool:
        is_left = False
        for key in self._runs.open_keys:
            while self._runs.follow(key, use):
                if _is_over(end):
                    return True
            if _is_over(end):
                is_left = True
                break
        return is_left

    def _sweep(self, *, everything: bool) -> None:
        """Compare the files of some ended rollouts: something may have changed or deleted them."""
        if not self._unswept or everything:
            self._unswept = self._runs.settled_keys
        for _ in range(len(self._unswept) if everything else _SWEEP):
            if not self._unswept:
                return
            self._runs.check(self._unswept.pop())


def _is_over(end: float | None) -> bool:
    return end is not None and time.monotonic() > end
