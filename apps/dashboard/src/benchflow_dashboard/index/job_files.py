"""What the index reads of a job's own files: the plan, and the record of the job."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

import pydantic_core
from benchflow_contracts import BenchFlowError
from benchflow_store.database import DATABASE_FILE, AttemptRow, JobReader, ResolvedSlot

from .log_fold import text, text_or_none
from .stat_of import FileStamp, open_regular, stamp_of

JOB_FILES: Final = ("job.json", "plan.json", "summary.json")
RECORD_FILES: Final = (DATABASE_FILE, f"{DATABASE_FILE}-wal")
_MOST_BYTES: Final = 64 << 20
_METRICS: Final = ("cost_usd", "tokens_in", "tokens_out")


@dataclass(frozen=True, slots=True)
class RecordMark:
    """How far the record of a job was read."""

    stamps: tuple[FileStamp, ...] = ()
    cursor: int = 0
    rewrites: int = -1
    revision: int = -1
    epoch: int = -1
    baseline: str | None = None
    """Of the plan, read again with each revision."""


@dataclass(slots=True)
class JobFacts:
    """The state of a job as its files have it."""

    status: str = "unknown"
    planned: int | None = None
    pending: int | None = None
    pruned: int | None = None
    stopped: str | None = None
    pause: str | None = None
    limits: str | None = None
    variants: str | None = None
    baseline: str | None = None
    created: float | None = None
    problem: str | None = None
    attempts: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """By rollout: the attempts that may have changed since the mark."""


def read_record(directory: Path, mark: RecordMark, facts: JobFacts, *, is_live: bool) -> RecordMark:
    """Read what has changed in the record of a job since `mark`, and return the new mark.

    The mark stays as it is when the file changed meanwhile, so that the next call reads it again.
    """
    stamps = record_stamps(directory)
    found = JobFacts()
    try:
        with JobReader(directory / DATABASE_FILE, mode="observe") as reader:
            new = read_progress(reader, mark, found, is_live=is_live)
    except BenchFlowError as error:
        facts.problem = text(f"record.db is not readable: {_first_line(error)}")
        return RecordMark(stamps=stamps)
    if stamps[0] != record_stamps(directory)[0]:
        facts.problem = "record.db changed while it was read; the next look reads it again"
        return mark
    for each in fields(JobFacts):
        setattr(facts, each.name, getattr(found, each.name))
    return replace(new, stamps=stamps)


def read_progress(
    reader: JobReader, mark: RecordMark, facts: JobFacts, *, is_live: bool | None
) -> RecordMark:
    """Read what has changed in a record since `mark`, and return the new mark.

    Without `is_live`, a job lives as long as its record says that it runs.

    Raises:
        StoreError: The record is damaged, or its database does not answer.
    """
    cursor, rewrites, revision = reader.progress()
    totals = reader.totals()
    is_same = (rewrites, totals.epoch) == (mark.rewrites, mark.epoch)
    first = mark.cursor if is_same else 0
    counts, control = reader.counts(), totals.control
    is_planned = (revision, rewrites) == (mark.revision, mark.rewrites)
    baseline = mark.baseline if is_planned else _baseline(reader)
    lives = control.status == "running" if is_live is None else is_live
    facts.status, facts.created = control.status, totals.created
    facts.planned = sum(counts.values())
    facts.pending, facts.pruned = counts.get("pending", 0), counts.get("skipped_pruned", 0)
    facts.stopped = None if control.stopped is None else text(control.stopped)
    facts.pause = None if control.pause is None else json.dumps(dict(control.pause))
    facts.limits = json.dumps(dict(control.model_limits)) if control.model_limits else None
    facts.variants, facts.baseline = json.dumps(list(totals.variants)), baseline
    facts.attempts = _attempts(reader, first, is_live=lives)
    return RecordMark((), cursor, rewrites, revision, totals.epoch, baseline)


def _baseline(reader: JobReader) -> str | None:
    newest = next(reversed(reader.revisions()), None)
    return None if newest is None else text_or_none(newest.baseline)


def _attempts(reader: JobReader, first: int, *, is_live: bool) -> dict[str, dict[str, Any]]:
    slots = {slot.index: slot for slot in reader.slots(first)}
    metrics: dict[int, dict[str, float]] = {}
    for index, name, value, _ in reader.metrics(first):
        if name in _METRICS:
            metrics.setdefault(index, {})[name] = value
    return {
        each.rollout: {
            **_attempt(each, slots[each.index], metrics.get(each.index, {})),
            "is_live": is_live and each.status == "running",
        }
        for each in reader.attempts(first)
    }


def _attempt(each: AttemptRow, slot: ResolvedSlot, metrics: Mapping[str, float]) -> dict[str, Any]:
    error = each.error
    return {
        "slot": slot.name,
        "variant": slot.variant,
        "task": slot.task,
        "attempt": each.attempt,
        "epoch": each.epoch,
        "status": each.status,
        "counted": each.counted,
        "started": each.started,
        "finished": each.finished,
        "record": slot.record if each.counted else None,
        "metrics": dict(metrics) if each.counted else {},
        "error": None
        if error is None
        else {"boundary": error.boundary, "type": error.type, "message": error.message},
    }


def read_plan(directory: Path, facts: JobFacts) -> None:
    """Read the size of a job without a record: of version 0.8, or one that has not begun."""
    for name in ("plan.json", "job.json", "summary.json"):
        try:
            with open_regular(directory / name) as file:
                content = dict(pydantic_core.from_json(file.read(_MOST_BYTES)))
            if "slots" in content:
                facts.planned = len(content["slots"])
                return
            if "planned" in content:
                facts.planned = min(int(content["planned"]), 1 << 31)
                return
        except FileNotFoundError:
            continue
        except (OSError, ValueError, TypeError) as error:
            facts.problem = facts.problem or text(f"{name} is not readable: {_first_line(error)}")


def record_stamps(directory: Path) -> tuple[FileStamp, ...]:
    """Return the stamps of the database and of its log."""
    return tuple(stamp_of(directory / name) for name in RECORD_FILES)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
