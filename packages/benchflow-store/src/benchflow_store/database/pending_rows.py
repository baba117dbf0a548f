"""The rows of one transaction, collected and then written table by table."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from .connection import SqlConnection
from .rows import Commit, PlannedSlot, PlanRevision, SlotStatus, storable, to_json

if TYPE_CHECKING:
    from benchflow_contracts import Dispatch

_ATTEMPT: Final = """
INSERT INTO attempts (job, idx, entry, attempt, epoch, rollout, worker, status, error_boundary,
    error_type, error_message, fingerprint, started, finished, counted, duplicate)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (job, idx, entry) DO UPDATE SET rollout = excluded.rollout, status = excluded.status,
    error_boundary = excluded.error_boundary, error_type = excluded.error_type,
    error_message = excluded.error_message, fingerprint = excluded.fingerprint,
    started = COALESCE(excluded.started, attempts.started), finished = excluded.finished,
    counted = excluded.counted, duplicate = excluded.duplicate"""
_WORKER: Final = 6
_COUNTED: Final = 14
"""Places in a row of `_ATTEMPT`."""
_UNCOUNT: Final = "UPDATE attempts SET counted = 0 WHERE job = ? AND idx = ? AND entry = ?"
_RECORD: Final = """
INSERT INTO records (job, idx, entry, record) VALUES (?, ?, ?, ?)
ON CONFLICT (job, idx) DO UPDATE SET entry = excluded.entry, record = excluded.record"""
_NO_RECORD: Final = "DELETE FROM records WHERE job = ? AND idx = ?"
_STATUS: Final = "UPDATE slots SET status = ? WHERE job = ? AND idx = ?"
_METRIC: Final = """
INSERT INTO metrics (job, idx, entry, name, value, measured) VALUES (?, ?, ?, ?, ?, ?)"""
_EVENT: Final = """
INSERT INTO events (job, idx, entry, seq, kind, ts, data) VALUES (?, ?, ?, ?, ?, ?, ?)"""
_REF: Final = "INSERT INTO refs (job, idx, entry, role, sha256, size) VALUES (?, ?, ?, ?, ?, ?)"

Entry = tuple[int, int]
"""An attempt: the index of its slot, and the number of its row in the slot."""
_Values = tuple[Any, ...]


@dataclass(slots=True)
class PendingRows:
    """The rows that a transaction will write. A later row of an attempt replaces an earlier one."""

    job: int
    statuses: dict[int, SlotStatus] = field(default_factory=dict[int, SlotStatus])
    """The new status of each slot that changes, by index."""
    _attempts: dict[Entry, list[Any]] = field(default_factory=dict[Entry, "list[Any]"])
    _uncounted: list[_Values] = field(default_factory=list[_Values])
    _records: dict[int, _Values | None] = field(default_factory=dict[int, "_Values | None"])
    """By index; `None` deletes the record of an attempt that counts no longer."""
    _metrics: list[_Values] = field(default_factory=list[_Values])
    _events: list[_Values] = field(default_factory=list[_Values])
    _refs: list[_Values] = field(default_factory=list[_Values])

    def add_start(
        self, entry: Entry, dispatch: "Dispatch", worker: str, started: float | None
    ) -> None:
        """Add an attempt that runs."""
        key = self.job, *entry, dispatch.attempt, dispatch.epoch, storable(dispatch.rollout)
        no_error = None, None, None, None
        self._attempts[entry] = [*key, storable(worker), "running", *no_error, started, None, 0, 0]

    def add_end(self, entry: Entry, commit: Commit, events: Sequence[str], *, counts: bool) -> None:
        """Add an attempt that has ended, with its metrics, events and artifacts."""
        completion, error = commit.completion, commit.completion.error
        earlier = self._attempts.get(entry)
        key = self.job, *entry
        self._attempts[entry] = [
            *key,
            completion.attempt,
            completion.epoch,
            storable(completion.rollout),
            "" if earlier is None else earlier[_WORKER],
            completion.status,
            None if error is None else error.boundary,
            None if error is None else storable(error.type),
            None if error is None else storable(error.message),
            None if commit.fingerprint is None else storable(commit.fingerprint),
            commit.started,
            commit.finished,
            int(counts),
            int(not counts),
        ]
        self._metrics += [
            (*key, storable(each.name), each.value, int(each.measured)) for each in commit.metrics
        ]
        self._events += [
            (*key, seq, storable(event.kind), event.ts, data)
            for seq, (event, data) in enumerate(zip(commit.events, events, strict=True))
        ]
        self._refs += [(*key, storable(ref.role), ref.sha256, ref.size) for ref in commit.refs]

    def uncount(self, entry: Entry) -> None:
        """Let an attempt no longer count."""
        earlier = self._attempts.get(entry)
        if earlier is None:
            self._uncounted.append((self.job, *entry))
        else:
            earlier[_COUNTED] = 0

    def set_record(self, entry: Entry, record: str | None) -> None:
        """Set the record of the attempt that counts; an attempt may have none."""
        index, _ = entry
        self._records[index] = None if record is None else (self.job, *entry, record)

    def write(self, connection: SqlConnection) -> None:
        """Write the rows, one statement for each table."""
        job, records = self.job, self._records
        for sql, rows in (
            (_UNCOUNT, self._uncounted),
            (_ATTEMPT, list(self._attempts.values())),
            (_NO_RECORD, [(job, index) for index, row in records.items() if row is None]),
            (_RECORD, [row for row in records.values() if row is not None]),
            (_METRIC, self._metrics),
            (_EVENT, self._events),
            (_REF, self._refs),
            (_STATUS, [(status, job, index) for index, status in self.statuses.items()]),
        ):
            if rows:
                connection.execute_many(sql, rows)


def insert_plan(
    connection: SqlConnection, job: int, revision: int, plan: PlanRevision, now: float
) -> None:
    """Add one plan revision."""
    connection.query(
        "INSERT INTO revisions (job, revision, config_digest, plan, created) "
        "VALUES (?, ?, ?, ?, ?)",
        (job, revision, plan.config_digest, to_json(plan.model_dump(mode="json")), now),
    )


def insert_slots(
    connection: SqlConnection, job: int, first: int, slots: Sequence[PlannedSlot]
) -> None:
    """Add pending slots from place `first` of the schedule."""
    connection.execute_many(
        "INSERT INTO slots (job, idx, name, variant, task, replication, task_digest, status) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, 'pending')",
        [
            (job, first + place, s.name, s.variant, s.task, s.repeat, s.task_digest)
            for place, s in enumerate(slots)
        ],
    )
