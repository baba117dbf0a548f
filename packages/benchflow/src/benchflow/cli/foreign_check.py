"""`bench tasks check`, on tasks of other formats."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from benchflow_contracts import ListedTask, Task, TaskAdapter

from benchflow.options import RunOptions
from benchflow.planes import open_provider
from benchflow.task_formats import loaded

from .foreign_tasks import as_json, explain, verdict
from .output import note, print_json, print_table
from .task_check import Row, run_expecting, warn, warnings


@dataclass(slots=True)
class _Checked:
    listed: ListedTask
    task: Task | None
    """`None` for one that cannot be run here."""
    runs: Sequence[Row] = field(default_factory=list[Row])

    @property
    def ok(self) -> bool:
        return self.listed.ok and all(run["ok"] for run in self.runs)


async def check_foreign(
    adapter: TaskAdapter,
    tasks: Sequence[ListedTask],
    options: RunOptions,
    *,
    run: bool,
    json: bool,
) -> int:
    """Read every task that is listed, run those that can be run when `run` says so; print all.

    Returns the exit code: 1 when a task is refused, or an agent got another reward than it
    should.
    """
    checked = [_read(adapter, listed) for listed in tasks]
    async with AsyncExitStack() as stack:
        provider = await stack.enter_async_context(open_provider(options)) if run else None
        for each in checked:
            if provider is not None and each.task is not None:
                without = () if _is_solved(each.task) else ("oracle",)
                each.runs = await run_expecting(provider, each.task, options, without=without)
    if json:
        print_json([_as_json(each) for each in checked])
    else:
        _show(checked, run=run)
    return 0 if all(each.ok for each in checked) else 1


def _read(adapter: TaskAdapter, listed: ListedTask) -> _Checked:
    found = loaded(adapter, listed)
    return _Checked(listed, found) if isinstance(found, Task) else _Checked(found, None)


def _is_solved(task: Task) -> bool:
    parts = [step.parts for step in task.steps] or [task.parts]
    return any(each.solution is not None for each in parts)


def _show(checked: Sequence[_Checked], *, run: bool) -> None:
    columns = ("task", "nop", "oracle", "verdict") if run else ("task", "verdict")
    print_table(columns, [_row(each, run=run) for each in checked], empty="no tasks")
    for each in checked:
        explain(each.listed)
        if each.task is not None:
            warn(each.task)
    if checked and not run:
        note("not run: --sandbox says where to run the tasks of others")


def _row(each: _Checked, *, run: bool) -> tuple[object, ...]:
    shown = {run["agent"]: run["shown"] for run in each.runs}
    rewards = (shown.get("nop", "-"), shown.get("oracle", "-")) if run else ()
    wrong = [f"{run['agent']}: {run['why']}" for run in each.runs if not run["ok"]]
    return each.listed.name, *rewards, "; ".join(wrong) or verdict(each.listed)


def _as_json(each: _Checked) -> dict[str, object]:
    found = [] if each.task is None else warnings(each.task)
    runs = [{k: v for k, v in run.items() if k not in {"task", "warnings"}} for run in each.runs]
    return {**as_json(each.listed), "ok": each.ok, "warnings": found, "runs": runs}
