"""Writes rows of `runs`, and keeps the counters equal to them."""

from typing import Any, Final

from .counted_rewards import count_rewards, write_rewards
from .database import IndexWriter
from .reward_sums import RewardSums, reward_rows
from .run_row import COLUMNS, RunRow

EVERYTHING: Final = "*"
"""The scope of the totals over all jobs. A directory cannot have this name in a glob."""

_PLACES: Final = ", ".join("?" * (len(COLUMNS) + 1))
_NAMES: Final = ", ".join((*COLUMNS, "is_current"))
_INSERT: Final = f"INSERT INTO runs ({_NAMES}) VALUES ({_PLACES})"
_UPDATE: Final = (
    f"UPDATE runs SET {', '.join(f'{name} = ?' for name in COLUMNS)}, is_current = ? WHERE id = ?"
)
_COUNTED: Final = (
    "id, COALESCE(variant, agent || CASE model WHEN '' THEN '' ELSE '/' || model END), "
    "job, task, agent, model, status, boundary, paid, cost, slot, is_current"
)
_ENDED: Final = frozenset({"completed", "ungraded", "failed"})
"""Only these rollouts are in the sums of rewards: the others may get further verdicts."""
_BEST: Final = """
SELECT id, is_current FROM runs WHERE job = ? AND slot = ?
ORDER BY counts AND is_final DESC, is_final DESC, attempt DESC, CAST(epoch AS INTEGER) DESC,
    finished DESC, name DESC"""
_SUMS: Final = ("n", "scored", "total", "squares", "cost", "costs")
_ADD: Final = ", ".join(f"{name} = {name} + excluded.{name}" for name in _SUMS)


def _add_to(table: str, keys: str) -> str:
    places = ", ".join("?" * (len(keys.split(",")) + len(_SUMS)))
    return f"INSERT INTO {table} VALUES ({places}) ON CONFLICT ({keys}) DO UPDATE SET {_ADD}"


_CELLS: Final = _add_to("cells", "job, task, agent, model, status, boundary")
_TOTALS: Final = _add_to("totals", "job, status, boundary")
_FACETS: Final = (
    "INSERT INTO facets VALUES (?, ?, ?) ON CONFLICT (kind, value) DO UPDATE SET n = n + excluded.n"
)


def write_run(writer: IndexWriter, row: RunRow, run: int | None, rewards: RewardSums) -> int:
    """Insert or replace a row with its rewards, and return its id. Call it in a transaction."""
    slots: set[str] = set()
    old = None if run is None else _counted(writer, run)
    if old is not None:
        if old[-1]:
            _count(writer, old, -1)
        if old[-2] is not None:
            slots.add(old[-2])
    is_alone = row.slot is None
    if run is None:
        writer.run(_INSERT, (*row.values(), is_alone))
        run = int(writer.rows("SELECT last_insert_rowid()")[0][0])
    else:
        writer.run(_UPDATE, (*row.values(), is_alone, run))
    write_rewards(writer, run, reward_rows(rewards))
    if row.slot is None:
        _count(writer, _counted(writer, run), 1)
    else:
        slots.add(row.slot)
    for slot in slots:
        _choose(writer, row.job, slot)
    return run


def delete_run(writer: IndexWriter, run: int) -> None:
    """Delete a row, its steps and its place in the counters."""
    old = _counted(writer, run)
    if old[-1]:
        _count(writer, old, -1)
    delete_steps(writer, run)
    writer.run("DELETE FROM runs WHERE id = ?", (run,))
    writer.run("DELETE FROM follows WHERE run = ?", (run,))
    writer.run("DELETE FROM rewards WHERE run = ?", (run,))
    if old[-2] is not None:
        _choose(writer, old[2], old[-2])


def delete_steps(writer: IndexWriter, run: int) -> None:
    """Delete the steps of a rollout from the search."""
    writer.run(
        "INSERT INTO step_words (step_words, rowid, title, body) "
        "SELECT 'delete', id, title, body FROM steps WHERE run = ?",
        (run,),
    )
    writer.run("DELETE FROM steps WHERE run = ?", (run,))


def _choose(writer: IndexWriter, job: str, slot: str) -> None:
    """Mark the attempt that stands for a slot."""
    for place, (run, is_current) in enumerate(writer.rows(_BEST, (job, slot))):
        if bool(is_current) != (place == 0):
            writer.run("UPDATE runs SET is_current = ? WHERE id = ?", (place == 0, run))
            _count(writer, _counted(writer, run), 1 if place == 0 else -1)


def _counted(writer: IndexWriter, run: int) -> tuple[Any, ...]:
    return writer.rows(f"SELECT {_COUNTED} FROM runs WHERE id = ?", (run,))[0]


def _count(writer: IndexWriter, row: tuple[Any, ...], sign: int) -> None:
    run, variant, job, task, agent, model, status, boundary, paid, cost, _, _ = row
    if status in _ENDED:
        count_rewards(writer, run, job, variant, sign)
    reward, dollars = paid or 0.0, cost or 0.0
    sums = (
        sign,
        sign * (paid is not None),
        sign * reward,
        sign * reward * reward,
        sign * dollars,
        sign * (cost is not None),
    )
    keys = (job, task, agent, model, status, boundary)
    writer.run(_CELLS, (*keys, *sums))
    writer.run(_TOTALS, (job, status, boundary, *sums))
    writer.run(_TOTALS, (EVERYTHING, status, boundary, *sums))
    names = ("job", "task", "agent", "model", "status", "boundary")
    for kind, value in zip(names, keys, strict=True):
        writer.run(_FACETS, (kind, value, sign))
    if sign < 0:
        _drop_empty(writer, keys)


def _drop_empty(writer: IndexWriter, keys: tuple[str, ...]) -> None:
    # Sums of an empty row would keep the rounding of what was added and taken away.
    job, _, _, _, status, boundary = keys
    writer.run(
        "DELETE FROM cells WHERE job = ? AND task = ? AND agent = ? AND model = ? "
        "AND status = ? AND boundary = ? AND n = 0",
        keys,
    )
    for scope in (job, EVERYTHING):
        writer.run(
            "DELETE FROM totals WHERE job = ? AND status = ? AND boundary = ? AND n = 0",
            (scope, status, boundary),
        )
