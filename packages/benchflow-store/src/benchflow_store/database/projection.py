"""Projections of the record database: `facts/`, `evidence/` and `runtime/` of a job's directory.

A projection is never the truth. It can be deleted, and `Projector` writes the same bytes again.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from benchflow_store.files import write_text

from .connection import Location
from .errors import failed_write
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
    _cursor: int = 0
    _rewrites: int = -1
    _sizes: dict[str, int] = field(default_factory=dict[str, int])
    _is_new: bool = True

    def update(self) -> int:
        """Bring every file up to the record, and return the cursor.

        The files show the slots before the cursor. They grow at the end, until a slot before the
        cursor changes: then they are written again.

        Raises:
            StoreError: The record cannot be read, or a file cannot be written.
        """
        if self._is_new:
            self._load_progress()
            self._is_new = False
        with JobReader(self.location, self.job) as reader:
            cursor, rewrites, _ = reader.progress()
            first, sizes = self._cursor, dict(self._sizes)
            if rewrites != self._rewrites or cursor < first:
                first, sizes = 0, dict.fromkeys(_GROWING, 0)
            try:
                self._grow(reader, first, cursor, sizes)
                for name, content in _WHOLE.items():
                    _replace(self.directory / name, content(reader))
            except OSError as error:
                raise failed_write(str(self.directory), error, 1 << 20) from error
        self._cursor, self._rewrites, self._sizes = cursor, rewrites, sizes
        self._save_progress()
        return cursor

    def _grow(self, reader: JobReader, first: int, end: int, sizes: dict[str, int]) -> None:
        """Append the slots from `first` to before `end`, and add the bytes to `sizes`."""
        paths = {name: self.directory / name for name in _GROWING}
        for name, path in paths.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.truncate(sizes[name])
        for start in range(first, end, _BATCH):
            slots = list(reader.slots(start, min(start + _BATCH, end)))
            for name, lines in _GROWING.items():
                data = encode(lines(reader, slots))
                with paths[name].open("ab") as file:
                    file.write(data)
                sizes[name] += len(data)

    def _load_progress(self) -> None:
        try:
            text = (self.directory / PROGRESS_FILE).read_text(encoding="utf-8")
            data = cast("dict[str, Any]", json.loads(text))
            sizes = {name: int(data["sizes"][name]) for name in _GROWING}
            cursor, rewrites = int(data["cursor"]), int(data["rewrites"])
            paths = {name: self.directory / name for name in _GROWING}
            is_whole = data["boot"] == _boot() and all(
                path.stat().st_size >= sizes[name] for name, path in paths.items()
            )
        except (OSError, ValueError, KeyError, TypeError):
            return
        if is_whole:
            self._cursor, self._rewrites, self._sizes = cursor, rewrites, sizes

    def _save_progress(self) -> None:
        progress = {
            "boot": _boot(),
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
