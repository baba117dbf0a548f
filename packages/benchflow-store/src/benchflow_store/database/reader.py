"""The reader of a job's record. It shows one state, also while a writer works."""

from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

from benchflow_contracts import UsageError

from .begin import read_state
from .connection import Location, Mode, Row, connect
from .errors import EmptyDatabaseError
from .rows import AttemptStatus, JobState, PlanRevision, RunControl, SlotStatus, parse_model
from .schema import check_version

if TYPE_CHECKING:
    from .summary import RecordTotals


class AttemptError(NamedTuple):
    """Why an attempt has no score."""

    boundary: str
    type: str
    message: str
    fingerprint: str | None


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One attempt of a slot."""

    index: int
    entry: int
    attempt: int
    epoch: int
    rollout: str
    worker: str
    status: AttemptStatus
    counted: bool
    duplicate: bool
    started: float | None
    finished: float | None
    error: AttemptError | None


@dataclass(frozen=True, slots=True)
class ResolvedSlot:
    """A slot with the attempt that counts, and the record of that attempt as JSON."""

    index: int
    name: str
    variant: str
    task: str
    repeat: int
    task_digest: str
    status: SlotStatus
    attempt: AttemptRow | None
    record: str | None


_ATTEMPT = """a.idx, a.entry, a.attempt, a.epoch, a.rollout, a.worker, a.status, a.counted,
    a.duplicate, a.started, a.finished, a.error_boundary, a.error_type, a.error_message,
    a.fingerprint"""


class JobReader:
    """Reads one state of the record of a job, inside a `with` block."""

    def __init__(self, location: Location, job: str | None = None, *, mode: Mode = "read") -> None:
        """Prepare to read `job` (default: the only job of the database).

        With the mode `observe`, nothing beside the database is written, and a database without a
        log is read as it is: compare its file before and after.
        """
        self._mode: Mode = mode
        self._location = location
        self._name = job
        self._blocks = ExitStack()
        self._state: JobState | None = None

    def __enter__(self) -> Self:
        with ExitStack() as blocks:
            self._db = connect(self._location, self._mode)
            blocks.callback(self._db.close)
            blocks.enter_context(self._db.read_transaction())
            check_version(self._db)
            self._id = self._find()
            self._blocks = blocks.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._blocks.close()

    def _find(self) -> int:
        rows = self._db.query("SELECT id, name FROM jobs ORDER BY id")
        if not rows:
            raise EmptyDatabaseError(f"{self._db.place} has no job yet")
        wanted = [row for row in rows if self._name in {None, row[1]}]
        if len(wanted) != 1:
            names = ", ".join(str(row[1]) for row in rows) or "none"
            raise UsageError(
                f"{self._db.place} has {len(wanted)} jobs of that name", hint=f"jobs: {names}"
            )
        return int(wanted[0][0])

    def state(self) -> JobState:
        """Return the job with all its slots."""
        if self._state is None:
            self._state = read_state(self._db, self._id)
        return self._state

    def totals(self) -> "RecordTotals":
        """Return the numbers that a status of the job shows."""
        from .summary import read_totals  # noqa: PLC0415 - only a status needs the sums

        return read_totals(self._db, self._id)

    def names(self, indexes: Collection[int]) -> dict[int, str]:
        """Return the names of slots by index."""
        sql = "SELECT name FROM slots WHERE job = ? AND idx = ?"
        return {index: str(self._db.query(sql, (self._id, index))[0][0]) for index in indexes}

    def counts(self) -> dict[SlotStatus, int]:
        """Return the number of slots by status."""
        rows = self._db.query(
            "SELECT status, COUNT(*) FROM slots WHERE job = ? GROUP BY status", (self._id,)
        )
        return {cast("SlotStatus", status): int(count) for status, count in rows}

    def progress(self) -> tuple[int, int, int]:
        """Return the cursor, the number of rewrites, and the newest plan revision.

        Rows before the cursor change only together with the number of rewrites.
        """
        sql = "SELECT cursor, rewrites, revision FROM jobs WHERE id = ?"
        row = self._db.query(sql, (self._id,))[0]
        return int(row[0]), int(row[1]), int(row[2])

    def revisions(self) -> list[PlanRevision]:
        """Return the plan revisions, the oldest first."""
        sql = "SELECT plan FROM revisions WHERE job = ? ORDER BY revision"
        rows = self._db.query(sql, (self._id,))
        return [parse_model(PlanRevision, row[0]) for row in rows]

    def slots(self, first: int = 0, end: int | None = None) -> Iterator[ResolvedSlot]:
        """Yield the slots from `first` to before `end`, with the attempts that count."""
        rows = self._db.query(
            f"SELECT s.name, s.variant, s.task, s.replication, s.task_digest, s.status, "  # noqa: S608
            f"r.record, s.idx, {_ATTEMPT} FROM slots s "
            "LEFT JOIN attempts a ON a.job = s.job AND a.idx = s.idx AND a.counted = 1 "
            "LEFT JOIN records r ON r.job = s.job AND r.idx = s.idx "
            "WHERE s.job = ? AND s.idx >= ? AND s.idx < ? ORDER BY s.idx",
            self._range(first, end),
        )
        for name, variant, task, repeat, digest, status, record, index, *attempt in rows:
            yield ResolvedSlot(
                index=index,
                name=name,
                variant=variant,
                task=task,
                repeat=repeat,
                task_digest=digest,
                status=status,
                attempt=None if attempt[0] is None else _attempt(tuple(attempt)),
                record=record,
            )

    def attempts(self, first: int = 0, end: int | None = None) -> list[AttemptRow]:
        """Return every attempt of the slots from `first` to before `end`."""
        rows = self._db.query(
            f"SELECT {_ATTEMPT} FROM attempts a "  # noqa: S608
            "WHERE a.job = ? AND a.idx >= ? AND a.idx < ? ORDER BY a.idx, a.entry",
            self._range(first, end),
        )
        return [_attempt(row) for row in rows]

    def running_attempts(self) -> list[AttemptRow]:
        """Return the attempts that run."""
        rows = self._db.query(
            f"SELECT {_ATTEMPT} FROM attempts a "  # noqa: S608
            "WHERE a.job = ? AND a.status = 'running' ORDER BY a.idx, a.entry",
            (self._id,),
        )
        return [_attempt(row) for row in rows]

    def control(self) -> RunControl:
        """Return the observable state of the job."""
        sql = "SELECT control FROM jobs WHERE id = ?"
        return parse_model(RunControl, self._db.query(sql, (self._id,))[0][0])

    def cut_short(self) -> dict[int, str]:
        """Return the rollout of each pending slot's last attempt, by index, if it did not end."""
        sql = (
            "SELECT a.idx, a.rollout, a.status FROM attempts a JOIN slots s ON s.job = a.job "
            "AND s.idx = a.idx WHERE a.job = ? AND s.status = 'pending' "
            "ORDER BY a.idx, a.attempt, a.epoch"
        )
        last = {row[0]: row for row in self._db.query(sql, (self._id,))}
        did_not_end = {"interrupted", "cancelled", "lost"}
        return {int(i): str(r) for i, r, status in last.values() if status in did_not_end}

    def cut_short_counts(self) -> dict[int, int]:
        """Return the number of attempts that the end of a run cut short, by index of their slot.

        An attempt that was cancelled with an error, such as a deadline, had a failure of its own.
        """
        sql = (
            "SELECT idx, COUNT(*) FROM attempts WHERE job = ? AND (status = 'interrupted' "
            "OR status = 'cancelled' AND error_type IS NULL) GROUP BY idx"
        )
        return {int(row[0]): int(row[1]) for row in self._db.query(sql, (self._id,))}

    def ended_rollouts(self) -> set[str]:
        """Return the rollout of every attempt whose end is on record."""
        sql = (
            "SELECT rollout FROM attempts WHERE job = ? AND status NOT IN ('running', "
            "'interrupted')"
        )
        return {str(row[0]) for row in self._db.query(sql, (self._id,))}

    def measured_totals(self) -> dict[str, float]:
        """Return the sum of each measured metric over all attempts, by name."""
        sql = "SELECT name, SUM(value) FROM metrics WHERE job = ? AND measured = 1 GROUP BY name"
        return {str(name): float(total) for name, total in self._db.query(sql, (self._id,))}

    def rewards(self) -> dict[int, float]:
        """Return the reward of each completed slot, by index. A tampered rollout counts as 0."""
        sql = (
            "SELECT s.idx, m.value FROM slots s LEFT JOIN attempts a ON a.job = s.job "
            "AND a.idx = s.idx AND a.counted = 1 LEFT JOIN metrics m ON m.job = a.job "
            "AND m.idx = a.idx AND m.entry = a.entry AND m.name = 'reward' "
            "WHERE s.job = ? AND s.status = 'completed' ORDER BY s.idx"
        )
        return {int(row[0]): float(row[1] or 0) for row in self._db.query(sql, (self._id,))}

    def counted_rollouts(self) -> dict[int, str]:
        """Return the rollout that counts, by the index of its slot."""
        sql = "SELECT idx, rollout FROM attempts WHERE job = ? AND counted = 1"
        return {int(row[0]): str(row[1]) for row in self._db.query(sql, (self._id,))}

    def metrics(self, first: int = 0, end: int | None = None) -> list[Row]:
        """Return (index, name, value, measured) of the attempts that count."""
        return self._counted("metrics", "m.name, m.value, m.measured", "m.name", first, end)

    def events(self, first: int = 0, end: int | None = None) -> list[Row]:
        """Return (index, seq, kind, ts, JSON) of the attempts that count."""
        return self._counted("events", "m.seq, m.kind, m.ts, m.data", "m.seq", first, end)

    def refs(self, first: int = 0, end: int | None = None) -> list[Row]:
        """Return (index, role, digest, size) of the attempts that count."""
        return self._counted("refs", "m.role, m.sha256, m.size", "m.role", first, end)

    def digests(self) -> set[str]:
        """Return the digest of every artifact that a row of the job names."""
        rows = self._db.query("SELECT DISTINCT sha256 FROM refs WHERE job = ?", (self._id,))
        return {str(row[0]) for row in rows}

    def contradictions(self) -> list[str]:
        """Return what the rows of the job say that cannot be true at once."""
        return [
            f"slot {row[0]}: {text}"
            for text, sql in _CONTRADICTIONS.items()
            for row in self._db.query(sql, (self._id,))
        ]

    def check_integrity(self) -> list[str]:
        """Return the damages of the database's own structure."""
        return self._db.check_integrity()

    def _counted(
        self, table: str, columns: str, order: str, first: int, end: int | None
    ) -> list[Row]:
        return self._db.query(
            f"SELECT m.idx, {columns} FROM {table} m JOIN attempts a "  # noqa: S608
            "ON a.job = m.job AND a.idx = m.idx AND a.entry = m.entry AND a.counted = 1 "
            f"WHERE m.job = ? AND m.idx >= ? AND m.idx < ? ORDER BY m.idx, {order}",
            self._range(first, end),
        )

    def _range(self, first: int, end: int | None) -> tuple[int, int, int]:
        return self._id, first, (1 << 62) if end is None else end


_CONTRADICTIONS = {
    "more than one attempt counts": "SELECT idx FROM attempts WHERE job = ? AND counted = 1 "
    "GROUP BY idx HAVING COUNT(*) > 1",
    "it is completed, and no scored attempt counts": "SELECT s.idx FROM slots s WHERE s.job = ? "
    "AND s.status = 'completed' AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.job = s.job "
    "AND a.idx = s.idx AND a.counted = 1 AND a.status = 'scored')",
    "its record belongs to an attempt that does not count": "SELECT r.idx FROM records r "
    "WHERE r.job = ? AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.job = r.job "
    "AND a.idx = r.idx AND a.entry = r.entry AND a.counted = 1)",
    "its scored attempt has no record": "SELECT a.idx FROM attempts a WHERE a.job = ? "
    "AND a.counted = 1 AND a.status = 'scored' AND NOT EXISTS "
    "(SELECT 1 FROM records r WHERE r.job = a.job AND r.idx = a.idx)",
    "it is pending, and before the cursor": "SELECT s.idx FROM slots s JOIN jobs j ON j.id = s.job "
    "WHERE s.job = ? AND s.status = 'pending' AND s.idx < j.cursor",
    "it is resolved, and the cursor stops there": "SELECT s.idx FROM slots s JOIN jobs j "
    "ON j.id = s.job WHERE s.job = ? AND s.status <> 'pending' AND s.idx = j.cursor",
}


def _attempt(row: tuple[Any, ...]) -> AttemptRow:
    index, entry, attempt, epoch, rollout, worker, status, counted, duplicate, *rest = row
    started, finished, boundary, kind, message, fingerprint = rest
    error = None
    if boundary is not None:
        error = AttemptError(boundary, kind, message, fingerprint)
    return AttemptRow(
        index=index,
        entry=entry,
        attempt=attempt,
        epoch=epoch,
        rollout=rollout,
        worker=worker,
        status=status,
        counted=bool(counted),
        duplicate=bool(duplicate),
        started=started,
        finished=finished,
        error=error,
    )


def read_job_state(location: Location, job: str | None = None) -> JobState:
    """Return the state of a job (default: of the only one).

    Raises:
        StoreError: The database is missing, damaged or of another version.
        UsageError: The database does not have exactly one job of that name.
    """
    with JobReader(location, job) as reader:
        return reader.state()
