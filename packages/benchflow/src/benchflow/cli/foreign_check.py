"""`bench tasks check`, on tasks of other formats."""

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchflow_contracts import ListedTask, SandboxProvider, Task, TaskAdapter
from benchflow_engine.config import RunConfig
from benchflow_engine.planes import open_provider
from benchflow_engine.task_formats import loaded

from .check_state import CheckState, Row
from .foreign_tasks import as_json, explain, verdict
from .output import note, print_json, print_table
from .task_check import run_expecting, warn_of, warnings

_VARIES: Final = (
    (re.compile(r"sha256:[0-9a-f]{64}"), "sha256:…"),
    (re.compile(r"'[^']*'|\"[^\"]*\""), "'…'"),
    (re.compile(r"(?<![\w.])/\S+"), "…"),
    (re.compile(r"\d+"), "N"),
)
_SERVICE: Final = re.compile(r"services\.[^.]+")
_LONGEST: Final = 160


def by_reason(rows: Iterable[Row]) -> list[dict[str, object]]:
    """Return each reason with its number of tasks, an example and the remedy, sorted by number."""
    counts: dict[str, int] = {}
    examples: dict[str, dict[str, object]] = {}
    for row in rows:
        for reason, hint in dict(_reasons(row)).items():
            counts[reason] = counts.get(reason, 0) + 1
            examples.setdefault(reason, {"example": row["id"], "hint": hint})
    ordered = sorted(counts, key=lambda reason: (-counts[reason], reason))
    return [{"reason": each, "count": counts[each], **examples[each]} for each in ordered]


def _reasons(row: Row) -> Iterator[tuple[str, str]]:
    for refusal in row["refusals"]:
        where = _SERVICE.sub("services.*", _key(refusal["where"] or ""))
        yield (
            _plain(f"{where}: {refusal['reason']}" if where else refusal["reason"]),
            refusal["hint"],
        )
    for run in row["runs"]:
        if not run["ok"]:
            yield _plain(f"{run['agent']}: {run['why']}"), ""


def _key(where: str) -> str:
    """Return the file's name and the key or line in it."""
    file, _, key = where.rpartition(":")
    name = (file or where).rpartition("/")[2]
    return f"{name}:{key}" if file else ""


def _plain(text: str) -> str:
    for pattern, instead in _VARIES:
        text = pattern.sub(instead, text)
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


_MANY: Final = 50
"""The largest number of tasks that are shown one by one; more tasks are shown by reason."""
_PROGRESS_SEC: Final = 5.0
"""The seconds between two lines of progress."""


@dataclass(frozen=True, slots=True)
class ForeignCheck:
    """The configuration of a check, and its output."""

    config: RunConfig
    run: bool
    json: bool
    by_reason: bool = False
    state: Path | None = None


async def check_foreign(
    adapter: TaskAdapter, tasks: Sequence[ListedTask], check: ForeignCheck
) -> int:
    """Check every listed task, run it if `check.run` is set, and print the results.

    Return the exit code: 1 if a task is refused, or if an agent got an unexpected reward.
    """
    async with AsyncExitStack() as stack:
        state = None
        if check.state is not None:
            state = stack.enter_context(CheckState(check.state, check.config, run=check.run))
        provider = None
        if check.run:
            provider = await stack.enter_async_context(open_provider(check.config))
        rows = await _rows(adapter, tasks, check.config, provider, state)
    if check.json:
        print_json(by_reason(rows) if check.by_reason else rows)
    else:
        _show(rows, check)
    return 0 if all(row["ok"] for row in rows) else 1


async def _rows(
    adapter: TaskAdapter,
    tasks: Sequence[ListedTask],
    config: RunConfig,
    provider: SandboxProvider | None,
    state: CheckState | None,
) -> list[Row]:
    rows: list[Row] = []
    resumed, last_note = 0, time.monotonic()
    for listed in tasks:
        row = None if state is None else state.row(listed)
        resumed += row is not None
        if row is None:
            row = await _check(adapter, listed, config, provider)
            if state is not None:
                state.add(listed, row)
        rows.append(row)
        if time.monotonic() - last_note > _PROGRESS_SEC:
            last_note = time.monotonic()
            note(f"checked {len(rows)} of {len(tasks)}: {_wrong(rows)} not ok")
    if resumed:
        note(f"--state: {resumed} of {len(tasks)} tasks have not changed since the last check")
    return rows


async def _check(
    adapter: TaskAdapter,
    listed: ListedTask,
    config: RunConfig,
    provider: SandboxProvider | None,
) -> Row:
    read = loaded(adapter, listed)
    task = read if isinstance(read, Task) else None
    checked = listed if isinstance(read, Task) else read
    runs: list[dict[str, object]] = []
    if provider is not None and task is not None:
        without = () if _is_solved(task) else ("oracle",)
        results = await run_expecting(provider, task, config, without=without)
        runs = [
            {k: v for k, v in each.items() if k not in {"task", "warnings"}} for each in results
        ]
    ok = checked.ok and all(run["ok"] for run in runs)
    lines = [] if task is None else warnings(task)
    return {**as_json(checked), "ok": ok, "warnings": lines, "runs": runs}


def _is_solved(task: Task) -> bool:
    parts = [step.parts for step in task.steps] or [task.parts]
    return any(each.solution is not None for each in parts)


def _wrong(rows: Sequence[Row]) -> int:
    return sum(not row["ok"] for row in rows)


def _show(rows: Sequence[Row], check: ForeignCheck) -> None:
    if check.by_reason or len(rows) > _MANY:
        _show_reasons(rows)
    else:
        _show_each(rows, run=check.run)
    if rows and not check.run:
        note("not run: give --sandbox to run foreign tasks")


def _show_reasons(rows: Sequence[Row]) -> None:
    reasons = by_reason(rows)
    table = [(each["count"], each["reason"], each["example"]) for each in reasons]
    print_table(("tasks", "reason", "example"), table, empty="no task is refused")
    wrong = _wrong(rows)
    note(f"{len(rows) - wrong} of {len(rows)} tasks are ok; --json shows each task")


def _show_each(rows: Sequence[Row], *, run: bool) -> None:
    columns = ("task", "nop", "oracle", "verdict") if run else ("task", "verdict")
    print_table(columns, [_line(row, run=run) for row in rows], empty="no tasks")
    for row in rows:
        explain(_listed(row))
        warn_of(row["id"], row["warnings"])


def _line(row: Row, *, run: bool) -> tuple[object, ...]:
    shown = {each["agent"]: each["shown"] for each in row["runs"]}
    rewards = (shown.get("nop", "-"), shown.get("oracle", "-")) if run else ()
    wrong = [f"{each['agent']}: {each['why']}" for each in row["runs"] if not each["ok"]]
    return row["id"], *rewards, "; ".join(wrong) or verdict(_listed(row))


def _listed(row: Row) -> ListedTask:
    known = {name: row[name] for name in ListedTask.model_fields if name in row}
    return ListedTask.model_validate({**known, "name": row["id"]})
