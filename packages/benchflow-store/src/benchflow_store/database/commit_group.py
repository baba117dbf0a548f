"""One transaction of a writer: it decides which attempts count, then writes all rows at once.

The rule is independent of the clock. A scored attempt counts over an unscored one. Between
unscored attempts the greater attempt number counts, then the greater epoch. The first scored
attempt of a slot is final.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from benchflow_contracts import Dispatch, StoreError, UsageError

from .connection import SqlConnection
from .errors import StaleWriterError
from .pending_rows import PendingRows, insert_plan, insert_slots
from .rows import (
    AttemptStatus,
    Commit,
    PlannedSlot,
    PlanRevision,
    RunControl,
    SlotStatus,
    to_json,
)

_SLOTS: Final = """
SELECT s.idx, s.name, s.status, a.entry, a.attempt, a.epoch, a.status, a.counted
FROM slots s LEFT JOIN attempts a ON a.job = s.job AND a.idx = s.idx
WHERE s.job = ? AND s.idx BETWEEN ? AND ?"""
_WITHOUT_END: Final[frozenset[AttemptStatus]] = frozenset(("running", "interrupted"))
_SPARSE: Final = 4
"""One query reads a range of slots if at least one of so many slots is needed."""


class _Rank(NamedTuple):
    """The order of attempts: the greatest one counts."""

    is_scored: bool
    attempt: int
    epoch: int


@dataclass(slots=True)
class _Slot:
    """A slot inside the transaction."""

    name: str
    status: SlotStatus
    entries: int = 0
    running: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """The entries of attempts without an end, by attempt and epoch."""
    counted: _Rank | None = None
    counted_entry: int = 0


class CommitGroup:
    """The changes of one transaction. Use it once, inside the transaction."""

    def __init__(self, connection: SqlConnection, job: int, epoch: int) -> None:
        self._connection = connection
        self._job = job
        self._epoch = epoch
        self._slots: dict[int, _Slot] = {}
        self._rows = PendingRows(job)
        self._changed: set[int] = set()

    def check_epoch(self) -> int:
        """Return the cursor, if the writer is still the newest one.

        Raises:
            StaleWriterError: A later writer has begun.
        """
        rows = self._connection.query(
            "UPDATE jobs SET epoch = epoch WHERE id = ? AND epoch = ? RETURNING cursor",
            (self._job, self._epoch),
        )
        if not rows:
            raise StaleWriterError(
                f"{self._connection.place}: a later writer has taken the job over "
                f"from the writer of epoch {self._epoch}"
            )
        return int(rows[0][0])

    def load(self, indices: Collection[int]) -> None:
        """Read the slots of several changes, if they lie together in the schedule."""
        if len(indices) > 1:
            first, last = min(indices), max(indices)
            if last - first < _SPARSE * len(indices):
                self._load(first, last)

    def start(self, dispatch: Dispatch, worker: str, started: float | None) -> None:
        """Add an attempt that runs."""
        slot = self._slot(dispatch.index, dispatch.slot)
        self._check_attempt_epoch(dispatch.slot, dispatch.epoch)
        key = dispatch.attempt, dispatch.epoch
        if key in slot.running:
            raise StoreError(f"attempt {dispatch.attempt} of {dispatch.slot!r} already runs")
        slot.entries += 1
        slot.running[key] = slot.entries
        self._rows.add_start((dispatch.index, slot.entries), dispatch, worker, started)

    def commit(
        self, commit: Commit, record: str | None, events: Sequence[str]
    ) -> tuple[bool, SlotStatus]:
        """Add an attempt that has ended. Return whether it counts, and the slot's status.

        `record` and `events` are the JSON of the attempt's record and of the data of its events.
        """
        completion = commit.completion
        slot = self._slot(completion.index, completion.slot)
        self._check_attempt_epoch(completion.slot, completion.epoch)
        entry = slot.running.pop((completion.attempt, completion.epoch), None)
        if entry is None:
            slot.entries += 1
            entry = slot.entries
        rank = _Rank(commit.is_scored, completion.attempt, completion.epoch)
        current = slot.counted
        counts = current is None or (not current.is_scored and rank > current)
        self._rows.add_end((completion.index, entry), commit, events, counts=counts)
        if counts:
            if current is not None:
                self._rows.uncount((completion.index, slot.counted_entry))
            slot.counted, slot.counted_entry = rank, entry
            self._rows.set_record((completion.index, entry), record)
            self._advance(slot, commit)
        self._changed.add(completion.index)
        return counts, slot.status

    def _advance(self, slot: _Slot, commit: Commit) -> None:
        """Set the status of a slot after an attempt that counts."""
        if commit.is_scored:
            self._set_status(commit.completion.index, slot, "completed")
        elif commit.is_last and slot.status == "pending":
            self._set_status(commit.completion.index, slot, "failed")

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
        query, job = self._connection.query, self._job
        names = {str(row[0]) for row in query("SELECT name FROM slots WHERE job = ?", (job,))}
        first = len(names)
        for slot in slots:
            if slot.name in names:
                raise UsageError(
                    f"the job already has a slot {slot.name!r}", hint="name each slot differently"
                )
            names.add(slot.name)
        sql = "UPDATE jobs SET revision = revision + 1 WHERE id = ? RETURNING revision"
        revision = int(query(sql, (job,))[0][0])
        insert_plan(self._connection, job, revision, plan, now)
        insert_slots(self._connection, job, first, slots)
        return revision

    def set_control(self, control: RunControl) -> None:
        """Replace the observable state of the job."""
        text = to_json(control.model_dump(mode="json"))
        self._connection.query("UPDATE jobs SET control = ? WHERE id = ?", (text, self._job))

    def flush(self, cursor: int) -> int:
        """Write the rows, and move the cursor. Return the new cursor."""
        self._rows.write(self._connection)
        statuses = self._rows.statuses
        moved = min([cursor, *(i for i, status in statuses.items() if status == "pending")])
        if moved == cursor and cursor in statuses:
            moved = self._first_pending(cursor)
        rewrites = int(any(index < cursor for index in (*self._changed, *statuses)))
        if moved != cursor or rewrites:
            sql = "UPDATE jobs SET cursor = ?, rewrites = rewrites + ? WHERE id = ?"
            self._connection.query(sql, (moved, rewrites, self._job))
        return moved

    def _first_pending(self, cursor: int) -> int:
        sql = "SELECT MIN(idx) FROM slots WHERE job = ? AND idx >= ? AND status = 'pending'"
        first = self._connection.query(sql, (self._job, cursor))[0][0]
        if first is None:
            sql = "SELECT COUNT(*) FROM slots WHERE job = ?"
            first = self._connection.query(sql, (self._job,))[0][0]
        return int(first)

    def _slot(self, index: int, name: str | None = None) -> _Slot:
        if index not in self._slots:
            self._load(index, index)
        slot = self._slots.get(index)
        if slot is None:
            raise StoreError(f"the schedule has no slot {index}")
        if name is not None and slot.name != name:
            raise StoreError(f"slot {index} of the schedule is {slot.name!r}, not {name!r}")
        return slot

    def _load(self, first: int, last: int) -> None:
        rows = self._connection.query(_SLOTS, (self._job, first, last))
        for index, name, slot_status, entry, attempt, epoch, status, counted in rows:
            slot = self._slots.get(index)
            if slot is None:
                slot = self._slots[index] = _Slot(name, slot_status)
            if entry is None:
                continue
            slot.entries = max(slot.entries, entry)
            if status in _WITHOUT_END:
                slot.running[attempt, epoch] = entry
            if counted:
                slot.counted = _Rank(status == "scored", attempt, epoch)
                slot.counted_entry = entry

    def _check_attempt_epoch(self, name: str, epoch: int) -> None:
        if epoch > self._epoch:
            raise StoreError(f"an attempt of {name!r} has epoch {epoch}, later than {self._epoch}")

    def _set_status(self, index: int, slot: _Slot, status: SlotStatus) -> None:
        slot.status = self._rows.statuses[index] = status
