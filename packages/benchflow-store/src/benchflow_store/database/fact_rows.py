"""The lines of `facts/` and `evidence/`: pure functions of the record database.

Two runs with the same seed have equal lines, except for the columns in `UNCOMPARED` and for the
metrics that are measured. `comparable` leaves these out.
"""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, Final, cast

from benchflow_contracts import RolloutRecord

from .reader import AttemptRow, JobReader, ResolvedSlot
from .rows import PlanRevision, parse_json, to_json

Line = dict[str, Any]

_ATTEMPT_COLUMNS: Final = {
    "rollout_id": "rollout",
    "attempt": "attempt",
    "epoch": "epoch",
    "started_at": "started",
    "finished_at": "finished",
}
"""Columns of a line, and the field of the attempt that each one shows."""
_COST_COLUMNS: Final = {"tokens_in": int, "tokens_out": int, "cost_usd": float}
"""Metrics that are columns of a trial, too."""
UNCOMPARED: Final[Mapping[str, tuple[str, ...]]] = {
    "facts/run_manifest.json": ("job", "created_at"),
    "facts/trials.jsonl": (
        *(*_ATTEMPT_COLUMNS, "began_from", "learner", "seconds"),
        *_COST_COLUMNS,
    ),
    "facts/metrics_long.jsonl": (),
    "facts/events.jsonl": ("rollout_id", "attempt", "ts"),
    "facts/variant_snapshots.jsonl": (),
    "evidence/evidence_records.jsonl": (*_ATTEMPT_COLUMNS,),
}
"""The columns with times, ids and measured costs, by file. `evidence/attempts.jsonl` is not
compared: two equal runs may need different attempts."""

_RECORD_COLUMNS: Final = tuple(
    name
    for name in RolloutRecord.model_fields
    if name
    not in {
        "schema_version",
        "rollout_id",
        "task_id",
        "task_digest",
        "status",
        "reward",
        "scored",
        "error",
        "slot",
        "finished_at",
        "attempt",
        "epoch",
    }
)
"""The fields of a record that a trial has under the same name."""


def trial_lines(reader: JobReader, slots: list[ResolvedSlot]) -> Iterator[Line]:
    """Yield one line for each slot, with the attempt that counts."""
    costs: dict[int, Line] = {}
    for slot, name, value, _ in _of_slots(slots, reader.metrics(*_range(slots))):
        if name in _COST_COLUMNS:
            costs.setdefault(slot.index, {})[name] = _COST_COLUMNS[name](value)
    for slot in slots:
        attempt = slot.attempt
        record = cast("Line", parse_json(slot.record)) if slot.record is not None else {}
        reward = _counted_reward(record)
        yield {
            **_key(slot),
            "task_digest": slot.task_digest,
            "status": slot.status,
            "reward": reward,
            "scored": reward is not None,
            "outcome": None if attempt is None else attempt.status,
            "rollout_status": record.get("status"),
            **{name: record.get(name) for name in _RECORD_COLUMNS},
            "scored_leaves": record.get("scored"),
            **_error_columns(attempt if reward is None else None),
            **_attempt_columns(attempt),
            "seconds": _seconds(attempt),
            **{name: costs.get(slot.index, {}).get(name) for name in _COST_COLUMNS},
        }


def metric_lines(reader: JobReader, slots: list[ResolvedSlot]) -> Iterator[Line]:
    """Yield one line for each metric. A measured one differs between equal runs."""
    for slot, name, value, measured in _of_slots(slots, reader.metrics(*_range(slots))):
        yield {**_key(slot), "name": name, "value": value, "measured": bool(measured)}


def event_lines(reader: JobReader, slots: list[ResolvedSlot]) -> Iterator[Line]:
    """Yield one line for each event."""
    for slot, seq, kind, ts, data in _of_slots(slots, reader.events(*_range(slots))):
        attempt = cast("AttemptRow", slot.attempt)
        yield {
            **_key(slot),
            "seq": seq,
            "kind": kind,
            "data": parse_json(data),
            "rollout_id": attempt.rollout,
            "attempt": attempt.attempt,
            "ts": ts,
        }


def evidence_lines(reader: JobReader, slots: list[ResolvedSlot]) -> Iterator[Line]:
    """Yield one line for each slot with an attempt: its artifacts, and the rollout that has more.

    The directory of a rollout has the name of its id.
    """
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
            }


def attempt_lines(reader: JobReader, slots: list[ResolvedSlot]) -> Iterator[Line]:
    """Yield one line for each attempt that has ended, also for those that do not count."""
    by_index = {slot.index: slot for slot in slots}
    for attempt in reader.attempts(*_range(slots)):
        if attempt.status != "running":
            yield {
                **_key(by_index[attempt.index]),
                "entry": attempt.entry,
                "outcome": attempt.status,
                "counted": attempt.counted,
                "duplicate": attempt.duplicate,
                **_error_columns(attempt),
                "worker": attempt.worker,
                **_attempt_columns(attempt),
            }


def variant_lines(revisions: Iterable[PlanRevision]) -> Iterator[Line]:
    """Yield one line for each variant, with the bindings of the newest revision that has it."""
    variants: dict[str, Mapping[str, Any]] = {}
    for plan in revisions:
        variants.update(plan.variants)
    for variant, bindings in variants.items():
        digest = sha256(to_json(bindings).encode()).hexdigest()
        yield {"variant": variant, "digest": digest, "config": bindings}


def manifest(reader: JobReader) -> Line:
    """Return the content of `facts/run_manifest.json`."""
    state = reader.state()
    return {
        "schema_version": "run_manifest_v1",
        "job": state.name,
        "created_at": state.created,
        "config_digest": state.plan.config_digest,
        "design": state.plan.design,
        "baseline": state.plan.baseline,
        "revision": state.revision,
        "slots": len(state.slots),
        "variants": list(dict.fromkeys(each.slot.variant for each in state.slots)),
        "tasks": {each.slot.task: each.slot.task_digest for each in state.slots},
        "config": state.plan.config,
    }


def comparable(file: str, lines: Iterable[Line]) -> list[Line]:
    """Return the lines of a file without what may differ between two runs with the same seed."""
    left_out = UNCOMPARED[file]
    return [
        {name: value for name, value in line.items() if name not in left_out}
        for line in lines
        if not line.get("measured")
    ]


def encode(lines: Iterable[Line]) -> bytes:
    """Return the lines as JSONL."""
    return "".join(f"{to_json(line)}\n" for line in lines).encode()


def _counted_reward(record: Line) -> float | None:
    """Return the reward that means count: 0 if the agent may have steered the verdict."""
    reward = record.get("reward")
    return 0.0 if reward is None and record.get("tampered") else reward


def _key(slot: ResolvedSlot) -> Line:
    return {
        "index": slot.index,
        "slot": slot.name,
        "variant": slot.variant,
        "task": slot.task,
        "repeat": slot.repeat,
    }


def _attempt_columns(attempt: AttemptRow | None) -> Line:
    return {
        column: None if attempt is None else getattr(attempt, name)
        for column, name in _ATTEMPT_COLUMNS.items()
    }


def _error_columns(attempt: AttemptRow | None) -> Line:
    error = None if attempt is None else attempt.error
    return {
        "error_boundary": None if error is None else error.boundary,
        "error_type": None if error is None else error.type,
        "error_message": None if error is None else error.message,
        "fingerprint": None if error is None else error.fingerprint,
    }


def _seconds(attempt: AttemptRow | None) -> float | None:
    if attempt is None or attempt.started is None or attempt.finished is None:
        return None
    return attempt.finished - attempt.started


def _range(slots: list[ResolvedSlot]) -> tuple[int, int]:
    return (slots[0].index, slots[-1].index + 1) if slots else (0, 0)


def _of_slots(slots: list[ResolvedSlot], rows: list[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    by_index = {slot.index: slot for slot in slots}
    for index, *values in rows:
        yield (by_index[index], *values)
