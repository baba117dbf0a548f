"""Projections of the record database: `facts/`, `evidence/` and `runtime/` of a job's directory.

A projection is never the truth. It can be deleted, and `Projector` writes the same bytes again.
"""

import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from benchflow_contracts import StoreError

from benchflow_store.files import write_text

from .connection import Location
from .errors import StaleWriterError, failed_write
from .fact_rows import (
    Line,
    attempt_lines,
    encode,
    event_lines,
    evidence_lines,
    manifest,
    metric_lines,
    trial_lines,
    variant_lines,
)
from .reader import JobReader, ResolvedSlot
from .rows import StoredSlot, to_json

_BATCH: Final = 1_000
"""The number of slots that are in memory at once."""
PROGRESS_FILE: Final = "runtime/projection.json"
"""The length of each file that grows, so that a later process continues it."""

_Lines = Callable[[JobReader, list[ResolvedSlot]], Iterator[Line]]
_GROWING: Final[dict[str, _Lines]] = {
    "facts/trials.jsonl": trial_lines,
    "facts/metrics_long.jsonl": metric_lines,
    "facts/events.jsonl": event_lines,
    "evidence/evidence_records.jsonl": evidence_lines,
    "evidence/attempts.jsonl": attempt_lines,
}
_WHOLE: Final[dict[str, Callable[[JobReader], str]]] = {
    "facts/run_manifest.json": lambda reader: to_json(manifest(reader)) + "\n",
    "facts/variant_snapshots.jsonl": lambda reader: encode(
        variant_lines(reader.revisions())
    ).decode(),
    "runtime/run_control.json": lambda reader: to_json(run_control(reader)) + "\n",
    "runtime/schedule_progress.json": lambda reader: to_json(schedule_progress(reader)) + "\n",
}
PROJECTED_FILES: Final = (*_GROWING, *_WHOLE)


@dataclass(slots=True)
class Projector:
    """Writes the projections of one job, and extends them while the job runs."""

    directory: Path
    location: Location
    job: str | None = None
    epoch: int | None = None
    """The epoch of this process's writer (default: write whoever runs the job)."""
    _cursor: int = 0
    _rewrites: int = -1
    _sizes: dict[str, int] = field(default_factory=dict[str, int])
    _created: float = 0
    """When the record was made that the files show: a deleted record begins at the same cursor."""
    _is_new: bool = True

    def update(self) -> int:
        """Bring every file up to the record, and return the cursor.

        The files show the slots before the cursor. They grow at the end, until a slot before the
        cursor changes: then they are replaced. A file that another process cut is replaced, too.

        Raises:
            StaleWriterError: A later writer has begun. It writes these files.
            StoreError: The record cannot be read, or a file cannot be written.
        """
        if self._is_new:
            self._load_progress()
            self._is_new = False
        with JobReader(self.location, self.job) as reader:
            created = self._check_epoch(reader)
            cursor, rewrites, _ = reader.progress()
            try:
                self._make_directories()
                is_same = (created, rewrites) == (self._created, self._rewrites)
                if is_same and cursor >= self._cursor and self._can_extend():
                    sizes = self._extend(reader, cursor)
                else:
                    sizes = self._replace_all(reader, cursor)
                for name, content in _WHOLE.items():
                    _replace(self.directory / name, content(reader))
            except OSError as error:
                raise failed_write(str(self.directory), error, 1 << 20) from error
        self._created, self._cursor, self._rewrites, self._sizes = created, cursor, rewrites, sizes
        self._save_progress()
        return cursor

    def _check_epoch(self, reader: JobReader) -> float:
        """Check that no later writer has begun. Return when the record was made."""
        state = reader.state()
        if self.epoch is not None and state.epoch != self.epoch:
            raise StaleWriterError(
                f"{str(self.directory)!r}: a later writer, of epoch {state.epoch}, writes the facts"
            )
        return state.created

    def _make_directories(self) -> None:
        for name in {path.partition("/")[0] for path in PROJECTED_FILES}:
            place = self.directory / name
            place.mkdir(parents=True, exist_ok=True)
            if place.is_symlink():
                raise StoreError(
                    f"{str(place)!r} is a link, and its files are not written",
                    hint="delete the link: the directory is made again",
                )

    def _can_extend(self) -> bool:
        """Return whether each file is at least as long as this process left it."""
        try:
            found = {name: (self.directory / name).lstat() for name in _GROWING}
        except FileNotFoundError:
            return False
        return all(
            stat.S_ISREG(each.st_mode) and each.st_size >= self._sizes[name]
            for name, each in found.items()
        )

    def _extend(self, reader: JobReader, cursor: int) -> dict[str, int]:
        """Write the slots from the old cursor to `cursor`. Return the sizes of the files."""
        paths = {name: self.directory / name for name in _GROWING}
        return _write_slots(reader, self._cursor, cursor, paths, self._sizes)

    def _replace_all(self, reader: JobReader, cursor: int) -> dict[str, int]:
        """Write the slots before `cursor` into new files. Return the sizes of the files."""
        paths = {name: self.directory / name for name in _GROWING}
        scratch = {name: path.with_name(f".{path.name}.tmp") for name, path in paths.items()}
        try:
            for path in scratch.values():
                path.unlink(missing_ok=True)
            sizes = _write_slots(reader, 0, cursor, scratch, dict.fromkeys(_GROWING, 0))
            for name, path in paths.items():
                scratch[name].replace(path)
        except BaseException:
            _delete(scratch.values())
            raise
        return sizes

    def _load_progress(self) -> None:
        try:
            text = (self.directory / PROGRESS_FILE).read_text(encoding="utf-8")
            data = cast("dict[str, Any]", json.loads(text))
            sizes = {name: int(data["sizes"][name]) for name in _GROWING}
            cursor, rewrites = int(data["cursor"]), int(data["rewrites"])
            created = float(data["created"])
            is_valid = data["boot"] == _boot() and min(cursor, *sizes.values()) >= 0
        except (OSError, ValueError, KeyError, TypeError):
            return
        if is_valid:
            self._created, self._cursor, self._rewrites, self._sizes = (
                created,
                cursor,
                rewrites,
                sizes,
            )

    def _save_progress(self) -> None:
        progress = {
            "boot": _boot(),
            "created": self._created,
            "cursor": self._cursor,
            "rewrites": self._rewrites,
            "sizes": self._sizes,
        }
        write_text(self.directory / PROGRESS_FILE, to_json(progress) + "\n")


def project(directory: Path, location: Location, job: str | None = None) -> int:
    """Write every projection again from the record. Return the cursor.

    Raises:
        StoreError: The record cannot be read, or a file cannot be written.
    """
    (directory / PROGRESS_FILE).unlink(missing_ok=True)
    return Projector(directory, location, job).update()


def projected(reader: JobReader, name: str) -> Iterator[bytes]:
    """Yield the content of one projected file, in parts.

    `name` is one of `PROJECTED_FILES`.
    """
    if name in _WHOLE:
        yield _WHOLE[name](reader).encode()
        return
    cursor = reader.progress()[0]
    for first in range(0, cursor, _BATCH):
        slots = list(reader.slots(first, min(first + _BATCH, cursor)))
        yield encode(_GROWING[name](reader, slots))


def run_control(reader: JobReader) -> Line:
    """Return the content of `runtime/run_control.json`, as run_control_v2."""
    state = reader.state()
    variants = {each.index: each.slot.variant for each in state.slots}
    return {
        "schema_version": "run_control_v2",
        "job": state.name,
        "epoch": state.epoch,
        "status": state.control.status,
        "active_rollouts": {
            each.rollout: {
                "worker": each.worker,
                "schedule_index": each.index,
                "variant": variants[each.index],
                "attempt": each.attempt,
                "started": each.started,
            }
            for each in reader.running_attempts()
        },
        "pause": state.control.pause,
        "stopped": state.control.stopped,
        "model_limits": dict(state.control.model_limits),
        "updated": state.control.updated,
    }


def schedule_progress(reader: JobReader) -> Line:
    """Return the content of `runtime/schedule_progress.json`, as schedule_progress_v1."""
    state = reader.state()
    rollouts = reader.counted_rollouts()
    resolved = [each for each in state.slots if each.status != "pending"]
    pruned = [each.slot.variant for each in resolved if each.status == "skipped_pruned"]
    return {
        "schema_version": "schedule_progress_v1",
        "job": state.name,
        "total_slots": len(state.slots),
        "next_schedule_index": state.cursor,
        "schedule": [
            {"variant": each.slot.variant, "task": each.slot.task, "repeat": each.slot.repeat}
            for each in state.slots
        ],
        "completed_slots": [
            {
                "schedule_index": each.index,
                "rollout": rollouts.get(each.index),
                "status": each.status,
            }
            for each in resolved
        ],
        "pruned_variants": list(dict.fromkeys(pruned)),
        "consecutive_failures": _consecutive_failures(resolved),
    }


def _consecutive_failures(resolved: list[StoredSlot]) -> dict[str, int]:
    """Return the failed slots at the end of each variant's resolved slots."""
    counts: dict[str, int] = {}
    for each in resolved:
        variant = each.slot.variant
        counts[variant] = counts.get(variant, 0) + 1 if each.status == "failed" else 0
    return counts


def _write_slots(
    reader: JobReader, first: int, end: int, paths: Mapping[str, Path], sizes: Mapping[str, int]
) -> dict[str, int]:
    """Write the slots from `first` to before `end` behind `sizes`. Return the new sizes.

    Each part is written at its place, and not at the end of a file: two processes that write the
    same part leave it once.
    """
    sizes = dict(sizes)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with ExitStack() as blocks:
        files = {
            name: blocks.enter_context(os.fdopen(os.open(path, flags, 0o666), "wb"))
            for name, path in paths.items()
        }
        for start in range(first, end, _BATCH):
            slots = list(reader.slots(start, min(start + _BATCH, end)))
            for name, lines in _GROWING.items():
                data = encode(lines(reader, slots))
                files[name].seek(sizes[name])
                files[name].write(data)
                sizes[name] += len(data)
        for name, file in files.items():
            file.truncate(sizes[name])
    return sizes


def _delete(paths: Iterable[Path]) -> None:
    with suppress(OSError):
        for path in paths:
            path.unlink(missing_ok=True)


def _replace(path: Path, text: str) -> None:
    """Write `text` atomically, unless the file already has it."""
    data = text.encode()
    if not (path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data):
        write_text(path, text)


def _boot() -> str:
    """Return the id of this start of the machine. A power cut may damage a file's last bytes."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
