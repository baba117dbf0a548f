"""Finds jobs and rollouts. A listing is read again only when its directory has changed."""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from .stat_of import NO_FILE, FileStamp, stamp_of

_NOT_ROLLOUTS: Final = frozenset({"evidence", "facts", "runtime", "export", "artifacts"})
_ROLLOUT_FILES: Final = ("events.jsonl", "result.json")
_JOB_FILES: Final = ("job.json", "summary.json", "record.db")
_RECENT_NS: Final = 2_000_000_000
"""A file system may give two changes in this time the same stamp."""

RunKey = tuple[str, str]
"""The name of a job, '' outside a job, and the name of a rollout."""


class Discovery:
    """The jobs and rollouts of a jobs directory, as far as they were found."""

    def __init__(
        self,
        jobs_dir: Path,
        *,
        jobs: Iterable[str] = (),
        rollouts: Iterable[RunKey] = (),
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Begin with the jobs and rollouts that are known already."""
        self.jobs = set(jobs)
        self.rollouts = set(rollouts)
        self._jobs_dir, self._now_ns = jobs_dir, now_ns
        self._stamps: dict[RunKey, FileStamp] = {}
        """Of each directory that was looked into; the key of a job is `(job, "")`."""
        self._others: set[RunKey] = set()
        """Directories that are not rollouts now."""

    def find_new(self) -> list[RunKey]:
        """Return the rollouts that are new since the last call."""
        found: list[RunKey] = []
        for name in self._list("", self._jobs_dir):
            if not self._is_rollout("", name):
                self._others.add(("", name))
            else:
                found.append(("", name))
        groups = {name for job, name in self._others if not job}
        for group in sorted(self.jobs | groups):
            found += self._look_into(group)
        for key in sorted(self._others):
            if self._has_changed(key, self._path(key)) and self._is_rollout(*key):
                found.append(key)
        self._others -= set(found)
        self.jobs.update(job for job, _ in found if job)
        self.rollouts.update(found)
        return found

    def forget(self, key: RunKey) -> None:
        """Forget a rollout whose directory is gone."""
        self.rollouts.discard(key)

    def forget_job(self, job: str) -> None:
        """Forget a job whose directory is gone."""
        self.jobs.discard(job)
        self._others.discard(("", job))

    def _look_into(self, group: str) -> list[RunKey]:
        directory = self._jobs_dir / group
        if group not in self.jobs and any((directory / name).exists() for name in _JOB_FILES):
            self.jobs.add(group)
        found: list[RunKey] = []
        for name in self._list(group, directory):
            if self._is_rollout(group, name):
                found.append((group, name))
            else:
                self._others.add((group, name))
        return found

    def _list(self, job: str, directory: Path) -> list[str]:
        """Return the names of directories that are neither rollouts nor known others."""
        if not self._has_changed((job, ""), directory):
            return []
        try:
            with os.scandir(directory) as entries:
                names = [each.name for each in entries if each.is_dir()]
        except OSError:
            return []
        return sorted(
            name
            for name in names
            if (job, name) not in self.rollouts
            and (job, name) not in self._others
            and (not job or name not in _NOT_ROLLOUTS)
            and (job or name not in self.jobs)
            and name.isprintable()
        )

    def _has_changed(self, key: RunKey, directory: Path) -> bool:
        stamp = stamp_of(directory)
        if stamp == NO_FILE:
            self._others.discard(key)
            return False
        is_recent = self._now_ns() - stamp[1] < _RECENT_NS
        if not is_recent and self._stamps.get(key) == stamp:
            return False
        self._stamps[key] = stamp
        return True

    def _path(self, key: RunKey) -> Path:
        return self._jobs_dir / key[0] / key[1]

    def _is_rollout(self, job: str, name: str) -> bool:
        directory = self._path((job, name))
        return any(stamp_of(directory / file) != NO_FILE for file in _ROLLOUT_FILES)
