"""The selected part of a jobs directory, as redacted copies that nobody changes."""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchflow_contracts import StoreError, UsageError
from benchflow_store.database import DATABASE_FILE

from benchflow_dashboard.index.discovery import Discovery, RunKey
from benchflow_dashboard.index.stat_of import NO_FILE, open_regular, stamp_of
from benchflow_dashboard.security.redaction import BundleRedactor, redact_database

from .options import BundleOptions

_LEFT_OUT: Final = frozenset({"checkpoints", "runtime"})
_JOB_FILES: Final = ("job.json", "plan.json", "summary.json")
_MOST_BYTES: Final = 256 << 20
"""A larger file is left out."""
_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class BundleSelection:
    """What is bundled."""

    jobs: tuple[str, ...]
    """Jobs with their own pages."""
    rollouts: tuple[RunKey, ...]
    """The newest first."""
    left_out: int
    """Selected rollouts beyond the limit."""


def select(jobs_dir: Path, options: BundleOptions) -> BundleSelection:
    """Return the jobs and rollouts that the options name. Links are left out.

    Raises:
        UsageError: The directory does not have a named job or rollout.
    """
    found = Discovery(jobs_dir)
    keys = [key for key in found.find_new() if not _is_link(jobs_dir, key)]
    jobs = sorted(job for job in found.jobs if not (jobs_dir / job).is_symlink())
    if options.jobs or options.rollouts:
        unknown = [job for job in options.jobs if job not in jobs]
        if unknown:
            raise UsageError(
                f"{str(jobs_dir)!r} has no job {unknown[0]!r}",
                hint="list jobs with `bench eval list`, or give --jobs-dir",
            )
        named = {_find(keys, name) for name in options.rollouts}
        keys = [key for key in keys if key in named or key[0] in options.jobs]
        jobs = [job for job in jobs if job in options.jobs]
    newest = sorted(keys, key=lambda key: (-_written(jobs_dir, key), key))
    chosen = tuple(newest[: options.limit])
    return BundleSelection(tuple(jobs), chosen, len(newest) - len(chosen))


def _find(keys: Sequence[RunKey], name: str) -> RunKey:
    matches = [key for key in keys if key[1] == name] or [
        key for key in keys if key[1].startswith(name)
    ]
    if len(matches) != 1:
        problem = "several rollouts begin with" if matches else "no rollout has the id"
        raise UsageError(f"{problem} {name!r}", hint="list rollouts with `bench rollout list`")
    return matches[0]


def _is_link(jobs_dir: Path, key: RunKey) -> bool:
    return (jobs_dir / key[0]).is_symlink() or (jobs_dir / key[0] / key[1]).is_symlink()


def _written(jobs_dir: Path, key: RunKey) -> int:
    directory = jobs_dir / key[0] / key[1]
    return max(stamp_of(directory / name)[1] for name in ("events.jsonl", "result.json"))


def stage(jobs_dir: Path, selection: BundleSelection, to: Path, redactor: BundleRedactor) -> None:
    """Copy the selection to the new directory `to`, without secrets, links and checkpoints.

    Raises:
        StoreError: A file cannot be read or written.
    """
    try:
        to.mkdir()
        for job in selection.jobs:
            (to / job).mkdir()
            for name in _JOB_FILES:
                _copy(jobs_dir / job / name, to / job / name, redactor.json)
            _copy_record(jobs_dir / job, to / job, redactor)
        for key in selection.rollouts:
            _copy_tree(jobs_dir / key[0] / key[1], to / key[0] / key[1], redactor)
    except OSError as error:
        raise StoreError(f"cannot copy the record: {error}") from error


def _copy_tree(source: Path, to: Path, redactor: BundleRedactor) -> None:
    to.mkdir(parents=True, exist_ok=True)
    for entry in _entries(source):
        name = entry.name
        if entry.is_dir(follow_symlinks=False):
            if name not in _LEFT_OUT:
                _copy_tree(source / name, to / name, redactor)
        elif entry.is_file(follow_symlinks=False):
            _copy(source / name, to / name, _redaction_of(name, redactor))


def _entries(directory: Path) -> Iterator["os.DirEntry[str]"]:
    with os.scandir(directory) as entries:
        yield from sorted(entries, key=lambda entry: entry.name)


def _redaction_of(name: str, redactor: BundleRedactor) -> Callable[[bytes], bytes]:
    if name.endswith(".jsonl"):
        return redactor.lines
    return redactor.json if name.endswith(".json") else redactor.data


def _copy(source: Path, to: Path, redact: Callable[[bytes], bytes]) -> None:
    """Copy a regular file with its time. A link, a missing or a very large file is left out."""
    try:
        with open_regular(source) as file:
            status = os.fstat(file.fileno())
            if status.st_size > _MOST_BYTES:
                return
            data = file.read()
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ELOOP}:
            return
        raise
    to.write_bytes(redact(data))
    os.utime(to, ns=(status.st_mtime_ns, status.st_mtime_ns))


def _copy_record(job: Path, to: Path, redactor: BundleRedactor) -> None:
    """Copy the record of a job as it is at one moment, without a lock that a run needs."""
    names = (DATABASE_FILE, f"{DATABASE_FILE}-wal")
    if stamp_of(job / DATABASE_FILE) == NO_FILE:
        return
    for _ in range(_TRIES):
        before = [stamp_of(job / name) for name in names]
        for name in names:
            (to / name).unlink(missing_ok=True)
            _copy(job / name, to / name, bytes)
        if before == [stamp_of(job / name) for name in names]:
            times = before[0][1]
            redact_database(to / DATABASE_FILE, redactor)
            os.utime(to / DATABASE_FILE, ns=(times, times))
            return
    raise StoreError(
        f"the record of job {job.name!r} changes all the time", hint="pause the job, then try again"
    )
