"""The numbers that a status of a job shows. The database counts; no slot is read by itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from .connection import SqlConnection
from .rows import AttemptStatus, RunControl, SlotStatus, parse_model

_JOB: Final = """
SELECT name, epoch, revision, created, cursor, control FROM jobs WHERE id = ?"""
_SLOTS: Final = """
SELECT variant, status, COUNT(*) FROM slots WHERE job = ?
GROUP BY variant, status ORDER BY MIN(idx)"""
_ATTEMPTS: Final = """
SELECT s.variant, a.status, COUNT(*) FROM attempts a JOIN slots s ON s.job = a.job AND s.idx = a.idx
WHERE a.job = ? GROUP BY s.variant, a.status ORDER BY s.variant, a.status"""
_METRICS: Final = """
SELECT s.variant, m.name, COUNT(*), SUM(m.value), MIN(m.value), MAX(m.value) FROM metrics m
JOIN attempts a ON a.job = m.job AND a.idx = m.idx AND a.entry = m.entry AND a.counted = 1
JOIN slots s ON s.job = m.job AND s.idx = m.idx
WHERE m.job = ? AND m.name IN ('reward', 'tokens_in', 'tokens_out', 'cost_usd')
GROUP BY s.variant, m.name ORDER BY s.variant, m.name"""
_ERRORS: Final = """
SELECT error_boundary, error_type, fingerprint, COUNT(*), MIN(error_message) FROM attempts
WHERE job = ? AND error_boundary IS NOT NULL
GROUP BY error_boundary, error_type, fingerprint
ORDER BY COUNT(*) DESC, error_boundary, error_type, fingerprint"""
_TIMES: Final = "SELECT MIN(started), MAX(finished) FROM attempts WHERE job = ?"


@dataclass(frozen=True, slots=True)
class MetricTotal:
    """One metric of the attempts that count."""

    count: int
    total: float
    least: float
    greatest: float


@dataclass(frozen=True, slots=True)
class VariantTotals:
    """What a variant has so far."""

    slots: dict[SlotStatus, int] = field(default_factory=dict["SlotStatus", int])
    attempts: dict[AttemptStatus, int] = field(default_factory=dict["AttemptStatus", int])
    """All attempts, also those that do not count."""
    metrics: dict[str, MetricTotal] = field(default_factory=dict[str, MetricTotal])
    """`reward`, `tokens_in`, `tokens_out` and `cost_usd`, where an attempt has them."""


class ErrorTotal(NamedTuple):
    """The attempts that ended with the same error."""

    boundary: str
    type: str
    fingerprint: str | None
    attempts: int
    example: str
    """The message of one of them."""


class RecordTotals(NamedTuple):
    """A job in numbers."""

    name: str
    epoch: int
    revision: int
    created: float
    cursor: int
    control: RunControl
    variants: Mapping[str, VariantTotals]
    """In the order of the schedule."""
    errors: tuple[ErrorTotal, ...]
    """The most frequent first."""
    first_started: float | None
    last_finished: float | None


def read_totals(connection: SqlConnection, job: int) -> RecordTotals:
    """Return the numbers of a job."""
    variants: dict[str, VariantTotals] = {}
    for variant, slot_status, count in connection.query(_SLOTS, (job,)):
        variants.setdefault(variant, VariantTotals()).slots[slot_status] = count
    for variant, status, count in connection.query(_ATTEMPTS, (job,)):
        variants[variant].attempts[status] = count
    for variant, name, *numbers in connection.query(_METRICS, (job,)):
        variants[variant].metrics[name] = MetricTotal(*numbers)
    first, last = connection.query(_TIMES, (job,))[0]
    name, epoch, revision, created, cursor, control = connection.query(_JOB, (job,))[0]
    return RecordTotals(
        name=name,
        epoch=epoch,
        revision=revision,
        created=created,
        cursor=cursor,
        control=parse_model(RunControl, control),
        variants=variants,
        errors=tuple(ErrorTotal(*row) for row in connection.query(_ERRORS, (job,))),
        first_started=first,
        last_finished=last,
    )
