"""One transaction of a writer: it decides which attempts count, then writes all rows at once.

The rule is independent of the clock. A scored attempt counts over an unscored one. Between
unscored attempts the greater attempt number counts, then the greater epoch. The first scored
attempt of a slot is final.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from benchflow_contracts import StoreError, UsageError
from benchflow_contracts.job import Dispatch

from .connection import SqlConnection
from .errors import StaleWriterError
from .rows import (
    AttemptStatus,
    Commit,
    PlannedSlot,
    PlanRevision,
    RunControl,
    SlotStatus,
    storable,
    to_json,
)

_SLOT: Final = """
SELECT s.name, s.status, a.entry, a.attempt, a.epoch, a.status, a.counted
FROM slots s LEFT JOIN attempts a ON a.job = s.job AND a.idx = s.idx
WHERE s.job = ? AND s.idx = ?"""
_ATTEMPT: Final = """
INSERT INTO attempts (job, idx, entry, attempt, epoch, rollout, worker, status, error_boundary,
    error_type, error_message, fingerprint, started, finished, counted, duplicate)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (job, idx, entry) DO UPDATE SET status = excluded.status,
    error_boundary = excluded.error_boundary, error_type = excluded.error_type,
    error_message = excluded.error_message, fingerprint = excluded.fingerprint,
    started = COALESCE(excluded.started, attempts.started), finished = excluded.finished,
    counted = excluded.counted, duplicate = excluded.duplicate"""
_RECORD: Final = """
INSERT INTO records (job, idx, entry, record) VALUES (?, ?, ?, ?)
ON CONFLICT (job, idx) DO UPDATE SET entry = excluded.entry, record = excluded.record"""
_INSERTS: Final = {
    "metrics": "INSERT INTO metrics (job, idx, entry, name, value, measured) "
    "VALUES (?, ?, ?, ?, ?, ?)",
    "events": "INSERT INTO events (job, idx, entry, seq, kind, ts, data) "
    "VALUES (?, ?, ?, ?, ?, ?, ?)",
    "refs": "INSERT INTO refs (job, idx, entry, role, sha256, size) VALUES (?, ?, ?, ?, ?, ?)",
}
_OPEN: Final[frozenset[AttemptStatus]] = frozenset(("running", "interrupted"))
_COUNTED: Final = 14
"""The place of `counted` in a row of `_ATTEMPT`."""


@dataclass(frozen=True, slots=True, order=True)
class _Rank:
    """The order of attempts: the greatest one counts."""

    scored: bool
    attempt: int
    epoch: int


@dataclass(slots=True)
class _Slot:
    """A slot inside the transaction."""

    name: str
    status: SlotStatus
    entries: int = 0
    open: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """The entries of attempts without an end, by attempt and epoch."""
    counted: _Rank | None = None
    counted_entry: int = 0


@dataclass(slots=True)
class CommitGroup:
    """The changes of one transaction. Use it once, inside the transaction."""

    connection: SqlConnection
    job: int
    epoch: int
    _slots: dict[int, _Slot] = field(default_factory=dict[int, _Slot])
    _attempts: dict[tuple[int, int], list[object]] = field(
        default_factory=dict[tuple[int, int], list[object]]
    )
    _records: dict[int, tuple[object, ...] | None] = field(
        default_factory=dict[int, "tuple[object, ...] | None"]
    )
    """By index; `None` deletes the record of an attempt that counts no longer."""
    _rows: dict[str, list[tuple[object, ...]]] = field(
        default_factory=lambda: {name: list[tuple[object, ...]]() for name in _INSERTS}
    )
    _uncounted: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    _statuses: dict[int, SlotStatus] = field(default_factory=dict[int, SlotStatus])
    _changed: set[int] = field(default_factory=set[int])

    def check_epoch(self) -> int:
        """Return the cursor, if the writer is still the newest one.

        Raises:
            StaleWriterError: A later writer has begun.
        """
        rows = self.connection.query(
            "UPDATE jobs SET epoch = epoch WHERE id = ? AND epoch = ? RETURNING cursor",
            (self.job, self.epoch),
        )
        if not rows:
            raise StaleWriterError(
                f"{self.connection.place}: a later writer has taken the job over "
                f"from the writer of epoch {self.epoch}"
            )
        return int(rows[0][0])

    def start(self, dispatch: Dispatch, worker: str, started: float | None) -> None:
        """Add an attempt that runs."""
        slot = self._slot(dispatch.index, dispatch.slot)
        self._check_attempt_epoch(dispatch.slot, dispatch.epoch)
        key = dispatch.attempt, dispatch.epoch
        if key in slot.open:
            raise StoreError(f"attempt {dispatch.attempt} of {dispatch.slot!r} already runs")
        slot.entries += 1
        slot.open[key] = slot.entries
        row = (self.job, dispatch.index, slot.entries, *key, dispatch.rollout, storable(worker))
        self._attempts[dispatch.index, slot.entries] = [
            *row, "running", None, None, None, None, started, None, 0, 0,
        ]  # fmt: skip

    def commit(self, commit: Commit, record: str | None) -> tuple[bool, SlotStatus]:
        """Add an attempt that has ended. Return whether it counts, and the slot's status."""
        completion = commit.completion
        slot = self._slot(completion.index, completion.slot)
        self._check_attempt_epoch(completion.slot, completion.epoch)
        entry = slot.open.pop((completion.attempt, completion.epoch), None)
        if entry is None:
            slot.entries += 1
            entry = slot.entries
        rank = _Rank(commit.is_scored, completion.attempt, completion.epoch)
        current = slot.counted
        counts = current is None or (not current.scored and rank > current)
        self._add_attempt(commit, entry, counts=counts)
        self._add_rows(commit, entry)
        if counts:
            self._count(slot, commit, entry, rank, record)
        self._changed.add(completion.index)
        return counts, slot.status

    def _count(
        self, slot: _Slot, commit: Commit, entry: int, rank: _Rank, record: str | None
    ) -> None:
        index = commit.completion.index
        if slot.counted is not None:
            earlier = self._attempts.get((index, slot.counted_entry))
            if earlier is None:
                self._uncounted.append((self.job, index, slot.counted_entry))
            else:
                earlier[_COUNTED] = 0
        slot.counted, slot.counted_entry = rank, entry
        self._records[index] = None if record is None else (self.job, index, entry, record)
        if commit.is_scored:
            self._set_status(index, slot, "completed")
        elif commit.is_last and slot.status == "pending":
            self._set_status(index, slot, "failed")

    def resolve(self, indices: Iterable[int], status: SlotStatus) -> None:
        """Set the status of slots that are pending: no further attempt of them runs."""
        for index, slot in [(index, self._slot(index)) for index in indices]:
            if slot.status == "pending":
                self._set_status(index, slot, status)

    def requeue(self, indices: Sequence[int]) -> None:
        """Make slots without a score pending again."""
        slots = [(index, self._slot(index)) for index in indices]
        scored = next((slot.name for _, slot in slots if slot.status == "completed"), None)
        if scored is not None:
            raise UsageError(
                f"slot {scored!r} has a score", hint="requeue only slots that have none"
            )
        for index, slot in slots:
            if slot.status != "pending":
                self._set_status(index, slot, "pending")

    def extend(self, plan: PlanRevision, slots: Sequence[PlannedSlot], now: float) -> int:
        """Add a plan revision, and its new slots at the end of the schedule."""
        query, job = self.connection.query, self.job
        first = int(query("SELECT COUNT(*) FROM slots WHERE job = ?", (job,))[0][0])
        rows = query("SELECT name FROM slots WHERE job = ?", (job,))
        names = [*(row[0] for row in rows), *(slot.name for slot in slots)]
        if len(set(names)) < len(names):
            name = next(name for name in names if names.count(name) > 1)
            raise UsageError(f"the job already has a slot {name!r}", hint="give each slot its name")
        sql = "UPDATE jobs SET revision = revision + 1 WHERE id = ? RETURNING revision"
        revision = int(query(sql, (job,))[0][0])
        insert_plan(self.connection, job, revision, plan, now)
        insert_slots(self.connection, job, first, slots)
        return revision

    def set_control(self, control: RunControl) -> None:
        """Replace the observable state of the job."""
        text = to_json(control.model_dump(mode="json"))
        self.connection.query("UPDATE jobs SET control = ? WHERE id = ?", (text, self.job))

    def flush(self, cursor: int) -> int:
        """Write the rows, and move the cursor. Return the new cursor."""
        many, job = self.connection.execute_many, self.job
        if self._uncounted:
            sql = "UPDATE attempts SET counted = 0 WHERE job = ? AND idx = ? AND entry = ?"
            many(sql, self._uncounted)
        if self._attempts:
            many(_ATTEMPT, self._attempts.values())
        deleted = [(job, index) for index, row in self._records.items() if row is None]
        if deleted:
            many("DELETE FROM records WHERE job = ? AND idx = ?", deleted)
        records = [row for row in self._records.values() if row is not None]
        if records:
            many(_RECORD, records)
        for table, rows in self._rows.items():
            if rows:
                many(_INSERTS[table], rows)
        if self._statuses:
            sql = "UPDATE slots SET status = ? WHERE job = ? AND idx = ?"
            many(sql, [(status, job, index) for index, status in self._statuses.items()])
        return self._move_cursor(cursor)

    def _move_cursor(self, cursor: int) -> int:
        waiting = [index for index, status in self._statuses.items() if status == "pending"]
        moved = min([cursor, *waiting])
        if moved == cursor and cursor in self._statuses:
            sql = "SELECT MIN(idx) FROM slots WHERE job = ? AND idx >= ? AND status = 'pending'"
            first = self.connection.query(sql, (self.job, cursor))[0][0]
            if first is None:
                sql = "SELECT COUNT(*) FROM slots WHERE job = ?"
                first = self.connection.query(sql, (self.job,))[0][0]
            moved = int(first)
        rewrites = int(any(index < cursor for index in (*self._changed, *self._statuses)))
        if moved != cursor or rewrites:
            sql = "UPDATE jobs SET cursor = ?, rewrites = rewrites + ? WHERE id = ?"
            self.connection.query(sql, (moved, rewrites, self.job))
        return moved

    def _slot(self, index: int, name: str | None = None) -> _Slot:
        slot = self._slots.get(index)
        if slot is None:
            slot = self._slots[index] = self._load(index)
        if name is not None and slot.name != name:
            raise StoreError(f"slot {index} of the schedule is {slot.name!r}, not {name!r}")
        return slot

    def _load(self, index: int) -> _Slot:
        rows = self.connection.query(_SLOT, (self.job, index))
        if not rows:
            raise StoreError(f"the schedule has no slot {index}")
        slot = _Slot(name=rows[0][0], status=cast("SlotStatus", rows[0][1]))
        for _, _, entry, attempt, epoch, status, counted in rows:
            if entry is None:
                continue
            slot.entries = max(slot.entries, entry)
            if status in _OPEN:
                slot.open[attempt, epoch] = entry
            if counted:
                slot.counted = _Rank(status == "scored", attempt, epoch)
                slot.counted_entry = entry
        return slot

    def _check_attempt_epoch(self, name: str, epoch: int) -> None:
        if epoch > self.epoch:
            raise StoreError(f"an attempt of {name!r} has epoch {epoch}, later than {self.epoch}")

    def _set_status(self, index: int, slot: _Slot, status: SlotStatus) -> None:
        slot.status = self._statuses[index] = status

    def _add_attempt(self, commit: Commit, entry: int, *, counts: bool) -> None:
        completion = commit.completion
        error = completion.error
        earlier = self._attempts.get((completion.index, entry))
        worker = "" if earlier is None else earlier[6]
        self._attempts[completion.index, entry] = [
            self.job,
            completion.index,
            entry,
            completion.attempt,
            completion.epoch,
            completion.rollout,
            worker,
            completion.status,
            None if error is None else error.boundary,
            None if error is None else storable(error.type),
            None if error is None else storable(error.message),
            commit.fingerprint,
            commit.started,
            commit.finished,
            int(counts),
            int(not counts),
        ]

    def _add_rows(self, commit: Commit, entry: int) -> None:
        key = self.job, commit.completion.index, entry
        self._rows["metrics"] += [
            (*key, metric.name, metric.value, int(metric.measured)) for metric in commit.metrics
        ]
        self._rows["events"] += [
            (*key, seq, event.kind, event.ts, to_json(event.data))
            for seq, event in enumerate(commit.events)
        ]
        self._rows["refs"] += [(*key, ref.role, ref.sha256, ref.size) for ref in commit.refs]


def insert_plan(
    connection: SqlConnection, job: int, revision: int, plan: PlanRevision, now: float
) -> None:
    """Add one plan revision."""
    values: Mapping[str, object] = plan.model_dump(mode="json")
    connection.query(
        "INSERT INTO revisions (job, revision, config_digest, plan, created) "
        "VALUES (?, ?, ?, ?, ?)",
        (job, revision, plan.config_digest, to_json(values), now),
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
