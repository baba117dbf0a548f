"""The first transaction of a writer: it creates the job, or takes it over."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchflow_contracts import StoreError, UsageError

from .connection import Row, SqlConnection
from .errors import JobIsRunningError
from .job_lock import is_locked
from .pending_rows import insert_plan, insert_slots
from .rows import JobState, PlannedSlot, PlanRevision, RunControl, StoredSlot, parse_model, to_json

_SLOTS: Final = """
SELECT s.idx, s.name, s.variant, s.task, s.replication, s.task_digest, s.status,
    COALESCE(a.newest, 0)
FROM slots s LEFT JOIN
    (SELECT idx, MAX(attempt) AS newest FROM attempts WHERE job = ? GROUP BY idx) a
    ON a.idx = s.idx
WHERE s.job = ? ORDER BY s.idx"""


def begin_job(
    connection: SqlConnection,
    name: str,
    home: Path | None,
    new: tuple[PlanRevision, Sequence[PlannedSlot]] | None,
    now: float,
) -> tuple[int, JobState]:
    """Create the job, or take it over with a greater epoch. Return its id and its state.

    Attempts that an earlier writer left without an end become `interrupted`.

    Raises:
        UsageError: There is no such job and no plan, or it was planned differently.
        JobIsRunningError: The database is a copy, and a process runs the original.
    """
    here = "" if home is None else str(home.resolve())
    rows = connection.query("SELECT id, home FROM jobs WHERE name = ?", (name,))
    if not rows and home is not None and new is None:
        rows = _rename(connection, name)
    if rows:
        job = int(rows[0][0])
        _check_original(connection.place, rows[0][1], here)
        _take_over(connection, job, here)
    elif new is None:
        raise UsageError(f"{connection.place} has no job {name!r}", hint="start the job first")
    else:
        job = _create(connection, name, here, new, now)
    if new is not None:
        _check_plan(connection, job, name, new[0])
    return job, read_state(connection, job)


def _rename(connection: SqlConnection, name: str) -> list[Row]:
    """Give the only job of a database the name of its directory, which was renamed."""
    if len(connection.query("SELECT id FROM jobs LIMIT 2")) != 1:
        return []
    return connection.query("UPDATE jobs SET name = ? RETURNING id, home", (name,))


def _check_plan(connection: SqlConnection, job: int, name: str, plan: PlanRevision) -> None:
    """Require that the plan is one of the job's revisions."""
    sql = "SELECT config_digest FROM revisions WHERE job = ? ORDER BY revision"
    digests = [str(row[0]) for row in connection.query(sql, (job,))]
    if plan.config_digest not in digests:
        raise UsageError(
            f"job {name!r} was planned differently: its configuration has digest {digests[-1]}, "
            f"not {plan.config_digest}",
            hint="give another --job-name, or the options of the first run",
        )


def _check_original(place: str, home: str, here: str) -> None:
    if home not in {"", here} and is_locked(Path(home)):
        raise JobIsRunningError(f"{place} is a copy of the job in {home!r}, which is being run")


def _take_over(connection: SqlConnection, job: int, home: str) -> None:
    sql = "UPDATE jobs SET epoch = epoch + 1, home = ? WHERE id = ? RETURNING cursor"
    cursor = connection.query(sql, (home, job))[0][0]
    cut_short = connection.query(
        "UPDATE attempts SET status = 'interrupted' WHERE job = ? AND status = 'running' "
        "RETURNING idx",
        (job,),
    )
    if any(row[0] < cursor for row in cut_short):
        connection.query("UPDATE jobs SET rewrites = rewrites + 1 WHERE id = ?", (job,))


def _create(
    connection: SqlConnection,
    name: str,
    home: str,
    new: tuple[PlanRevision, Sequence[PlannedSlot]],
    now: float,
) -> int:
    plan, slots = new
    job = int(connection.query("SELECT COALESCE(MAX(id), 0) + 1 FROM jobs")[0][0])
    control = to_json(RunControl(updated=now).model_dump(mode="json"))
    connection.query(
        "INSERT INTO jobs (id, name, epoch, revision, cursor, rewrites, home, control, created) "
        "VALUES (?, ?, 1, 1, 0, 0, ?, ?, ?)",
        (job, name, home, control, now),
    )
    insert_plan(connection, job, 1, plan, now)
    insert_slots(connection, job, 0, slots)
    return job


def read_state(connection: SqlConnection, job: int) -> JobState:
    """Return the state of a job."""
    rows = connection.query(
        "SELECT j.name, j.epoch, j.cursor, j.revision, j.control, j.created, r.plan "
        "FROM jobs j JOIN revisions r ON r.job = j.id AND r.revision = j.revision "
        "WHERE j.id = ?",
        (job,),
    )
    if not rows:
        raise StoreError(f"{connection.place}: the newest plan of the job is missing")
    name, epoch, cursor, revision, control, created, plan = rows[0]
    return JobState(
        name=name,
        epoch=epoch,
        cursor=cursor,
        revision=revision,
        plan=parse_model(PlanRevision, plan),
        control=parse_model(RunControl, control),
        created=created,
        slots=tuple(map(_slot_state, connection.query(_SLOTS, (job, job)))),
    )


def _slot_state(row: Row) -> StoredSlot:
    index, *slot, status, attempts = row
    return StoredSlot(index=index, slot=PlannedSlot(*slot), status=status, attempts=attempts)
