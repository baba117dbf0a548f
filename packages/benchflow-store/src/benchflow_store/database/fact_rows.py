"""The lines of `facts/` and `evidence/`: pure functions of the record database.

Two runs with the same seed have equal lines, except for the columns in `UNCOMPARED`.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from benchflow_store.record import RolloutRecord

from .reader import AttemptRow, JobReader, ResolvedSlot
from .rows import PlanRevision, to_json

Line = dict[str, Any]

_ATTEMPT_COLUMNS: Final = ("rollout", "attempt", "epoch", "started", "finished")
UNCOMPARED: Final[Mapping[str, tuple[str, ...]]] = {
    "facts/run_manifest.json": ("job", "created"),
    "facts/trials.jsonl": (*_ATTEMPT_COLUMNS, "duration_sec"),
    "facts/metrics_long.jsonl": ("rollout", "measured_value"),
    "facts/events.jsonl": ("rollout", "ts"),
    "facts/variant_snapshots.jsonl": (),
    "evidence/evidence_records.jsonl": (*_ATTEMPT_COLUMNS, "directory"),
}
"""The columns with times, ids and measured costs, by file. A comparison of two runs leaves them
out. `evidence/attempts.jsonl` is not compared: two runs may need different attempts."""

_NAMED_OTHERWISE: Final = {
    "schema_version",
    "rollout_id",
    "task_id",
    "task_digest",
    "status",
    "error",
    "slot",
    "finished_at",
    "attempt",
    "epoch",
}
_RECORD_COLUMNS: Final = tuple(
    name for name in RolloutRecord.model_fields if name not in _NAMED_OTHERWISE
)
"""The fields of a record that a trial has under the same name."""


def trial_lines(slots: list[ResolvedSlot]) -> Iterator[Line]:
    """Yield one line for each slot, with the attempt that counts."""
    for slot in slots:
        attempt = slot.attempt
        record = cast("Line", json.loads(slot.record)) if slot.record is not None else {}
        error = None if attempt is None else attempt.error
        yield {
            **_key(slot),
            "task_digest": slot.task_digest,
            "status": slot.status,
            "outcome": None if attempt is None else attempt.status,
            "rollout_status": record.get("status"),
            **{name: record.get(name) for name in _RECORD_COLUMNS},
            "error_boundary": None if error is None else error.boundary,
            "error_type": None if error is None else error.type,
            "error_message": None if error is None else error.message,
            "fingerprint": None if error is None else error.fingerprint,
            **_attempt_columns(attempt),
            "duration_sec": _duration(attempt),
        }


def metric_lines(reader: JobReader, slots: list[ResolvedSlot]) -> Iterator[Line]:
    """Yield one line for each metric. A measured one has its number in a column of its own."""
    for slot, name, value, measured in _of_slots(slots, reader.metrics(*_range(slots))):
        yield {
            **_key(slot),
            "name": name,
            "value": None if measured else value,
            "measured_value": value if measured else None,
            "rollout": _rollout(slot),
        }


def event_lines(reader: JobReader, slots: list[ResolvedSlot]) -> Iterator[Line]:
    """Yield one line for each event."""
    for slot, seq, kind, ts, data in _of_slots(slots, reader.events(*_range(slots))):
        yield {
            **_key(slot),
            "seq": seq,
            "kind": kind,
            "data": json.loads(data),
            "rollout": _rollout(slot),
            "ts": ts,
        }


def evidence_lines(reader: JobReader, slots: list[ResolvedSlot]) -> Iterator[Line]:
    """Yield one line for each slot with an attempt: its artifacts and the rollout's directory."""
    artifacts: dict[int, Line] = {}
    for slot, role, digest, size in _of_slots(slots, reader.refs(*_range(slots))):
        ref = {"ref": f"artifact://sha256/{digest}", "size": size}
        artifacts.setdefault(slot.index, {})[role] = ref
    for slot in slots:
        if slot.attempt is not None:
            yield {
                **_key(slot),
                "outcome": slot.attempt.status,
                "artifacts": artifacts.get(slot.index, {}),
                **_attempt_columns(slot.attempt),
                "directory": slot.attempt.rollout,
            }


def attempt_lines(reader: JobReader, slots: list[ResolvedSlot]) -> Iterator[Line]:
    """Yield one line for each attempt that has ended, also for those that do not count."""
    by_index = {slot.index: slot for slot in slots}
    for attempt in reader.attempts(*_range(slots)):
        if attempt.status == "running":
            continue
        error = attempt.error
        yield {
            **_key(by_index[attempt.index]),
            "entry": attempt.entry,
            "outcome": attempt.status,
            "counted": attempt.counted,
            "duplicate": attempt.duplicate,
            "error_boundary": None if error is None else error.boundary,
            "error_type": None if error is None else error.type,
            "error_message": None if error is None else error.message,
            "fingerprint": None if error is None else error.fingerprint,
            "worker": attempt.worker,
            **_attempt_columns(attempt),
        }


def variant_lines(revisions: list[PlanRevision]) -> Iterator[Line]:
    """Yield one line for each binding of each variant, in the revision that introduced it."""
    before: dict[str, Mapping[str, Any]] = {}
    for number, plan in enumerate(revisions, start=1):
        for variant, bindings in plan.variants.items():
            if before.get(variant) == bindings:
                continue
            before[variant] = bindings
            for name, value in bindings.items() or [(None, None)]:
                yield {"variant": variant, "name": name, "value": value, "revision": number}


def manifest(reader: JobReader) -> Line:
    """Return the content of `facts/run_manifest.json`."""
    state = reader.state()
    tasks = {each.slot.task: each.slot.task_digest for each in state.slots}
    return {
        "schema_version": "run_manifest_v1",
        "job": state.name,
        "created": state.created,
        "config_digest": state.plan.config_digest,
        "revision": state.revision,
        "variants": list(state.plan.variants),
        "tasks": tasks,
        "slots": len(state.slots),
        "config": state.plan.config,
    }


def encode(lines: Iterator[Line]) -> bytes:
    """Return the lines as JSONL."""
    return "".join(f"{to_json(line)}\n" for line in lines).encode()


def _key(slot: ResolvedSlot) -> Line:
    return {
        "index": slot.index,
        "slot": slot.name,
        "variant": slot.variant,
        "task": slot.task,
        "repeat": slot.repeat,
    }


def _attempt_columns(attempt: AttemptRow | None) -> Line:
    return {name: None if attempt is None else getattr(attempt, name) for name in _ATTEMPT_COLUMNS}


def _duration(attempt: AttemptRow | None) -> float | None:
    if attempt is None or attempt.started is None or attempt.finished is None:
        return None
    return attempt.finished - attempt.started


def _rollout(slot: ResolvedSlot) -> str | None:
    return None if slot.attempt is None else slot.attempt.rollout


def _range(slots: list[ResolvedSlot]) -> tuple[int, int]:
    return (slots[0].index, slots[-1].index + 1) if slots else (0, 0)


def _of_slots(slots: list[ResolvedSlot], rows: list[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    by_index = {slot.index: slot for slot in slots}
    for index, *values in rows:
        yield (by_index[index], *values)
