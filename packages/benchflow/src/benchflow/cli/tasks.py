"""`bench tasks`: write and check tasks."""

from collections.abc import Sequence
from pathlib import Path

from benchflow_contracts import Task, UsageError
from benchflow_engine.config import RunConfig
from benchflow_engine.data_tasks import data_source, load_data_tasks
from benchflow_engine.flags import RunFlags
from benchflow_engine.planes import open_provider
from benchflow_engine.scaffold import write_task
from benchflow_engine.task_formats import adapter_for, listed_tasks
from benchflow_engine.task_import import import_tasks
from benchflow_kernel import find_tasks

from .flags import Json
from .foreign_check import ForeignCheck, check_foreign
from .foreign_tasks import show_imported, show_listed
from .output import note, print_json, print_table
from .rollout_flags import Run, configuration, origins
from .task_check import Row, check_cheats, read_only, run_expecting, warn


async def check(
    path: str,
    *,
    dataset: str | None = None,
    options: Run = RunFlags(),
    no_run: bool = False,
    cheat: bool = False,
    by_reason: bool = False,
    state: Path | None = None,
    json: Json = False,
) -> int:
    """Check tasks: the files are valid, doing nothing earns 0, the solution earns 1.

    A warning names tests that seem to run the agent's code in their own process. With --cheat,
    each shipped cheat runs as the task's agent. A cheat that gets the full reward without being
    detected gives exit code 1.

    Tasks of Harbor and Terminal-Bench run only if --sandbox is given. A task without a solution
    is not run by the oracle. More than 50 tasks are shown by reason.

    Examples:
        bench tasks check benchmarks/clawsbench/tasks
        bench tasks check my-task --no-run
        bench tasks check my-task --cheat --isolation twin
        bench tasks check HARBOR-TASKS --sandbox docker
        bench tasks check MANY-TASKS --state checked.jsonl --by-reason --json
        bench tasks check registry.json --dataset some-set@1.0

    Args:
        path: Task directory, a directory of tasks, a git URL or a registry.json.
        dataset: Dataset of a registry, as NAME or NAME@VERSION.
        options: Options of the sandbox and the grading. The check chooses the agent.
        no_run: Check of the files only; no task runs.
        cheat: Attempts of the shipped cheats to get the reward without the work.
        by_reason: Number of foreign tasks for each reason of failure, with an example.
        state: File with the results for foreign tasks. The next check with the same options
            skips a task that has not changed.
    """
    if cheat and (by_reason or state is not None):
        raise UsageError("--cheat does not use --by-reason and --state", hint="leave them out")
    config = configuration(options)
    if cheat:
        return await check_cheats(path, config, dataset=dataset, json=json)
    if (found := adapter_for(path, config.adapter_options())) is not None:
        run = "sandbox.provider" in origins() and not no_run
        listed = listed_tasks(found[1], path, dataset=dataset)
        foreign = ForeignCheck(config, run=run, json=json, by_reason=by_reason, state=state)
        return await check_foreign(found[1], listed, foreign)
    if by_reason or state is not None:
        raise UsageError(
            "--by-reason and --state apply only to foreign tasks", hint="leave them out"
        )
    if dataset is not None:
        raise UsageError("--dataset applies only to a registry.json", hint="leave it out")
    return await _check_own(find_tasks(Path(path)), config, no_run=no_run, json=json)


async def _check_own(tasks: Sequence[Task], config: RunConfig, *, no_run: bool, json: bool) -> int:
    for task in tasks:
        warn(task)
    rows: list[Row] = []
    if no_run:
        rows = [read_only(task) for task in tasks]
    else:
        async with open_provider(config) as provider:
            for task in tasks:
                rows += await run_expecting(provider, task, config)
    if json:
        print_json(rows)
    else:
        cells = [
            (r["task"], r["agent"] or "-", r.get("shown", "-"), "ok" if r["ok"] else r["why"])
            for r in rows
        ]
        print_table(("task", "agent", "reward", "verdict"), cells, empty="no tasks")
    return 0 if all(row["ok"] for row in rows) else 1


def init(path: Path, *, json: Json = False) -> None:
    """Create a small working task, as a start for a new task.

    Examples:
        bench tasks init my-task && bench tasks check my-task

    Args:
        path: Directory of the new task; it must not exist.
    """
    files = write_task(path)
    if json:
        print_json({"path": str(path), "files": files})
    else:
        note("\n".join([f"created {path}:", *(f"  {name}" for name in files)]))


def list_tasks(path: str, *, dataset: str | None = None, json: Json = False) -> None:
    """List tasks of BenchFlow, Harbor and Terminal-Bench.

    Examples:
        bench tasks list benchmarks/clawsbench/tasks
        bench tasks list https://github.com/org/tasks@main
        bench tasks list registry.json --dataset some-set@1.0
        bench tasks list 'NAME://ADDRESS?split=train&limit=5'

    Args:
        path: Task directory, a directory of tasks, a git URL, a registry.json, or a registered
            source of tasks as NAME://ADDRESS?split=S&start=N&limit=N.
        dataset: Dataset of a registry, as NAME or NAME@VERSION.
    """
    data = data_source(path)
    if data is None and (found := adapter_for(path)) is not None:
        show_listed(listed_tasks(found[1], path, dataset=dataset), json=json)
        return
    if dataset is not None:
        raise UsageError("--dataset applies only to a registry.json", hint="leave it out")
    tasks = find_tasks(Path(path)) if data is None else load_data_tasks(data)
    if json:
        print_json([{"id": t.id, "path": str(t.path), "digest": t.digest} for t in tasks])
    else:
        rows = [(t.id, t.config.verifier.type, t.config.verifier.isolation, t.path) for t in tasks]
        print_table(("task", "verifier", "isolation", "path"), rows, empty=f"no tasks below {path}")


def import_foreign_tasks(
    source: str,
    dest: Path,
    *,
    dataset: str | None = None,
    overwrite: bool = False,
    json: Json = False,
) -> int:
    """Copy tasks of Harbor and Terminal-Bench to a directory, and lock their digests.

    The files do not change. `tasks.lock.json` beside them records their source. A task that
    changed after the import is refused. Exit code 1: a task could not be imported.

    Examples:
        bench tasks import https://github.com/org/tasks@main tasks
        bench tasks import registry.json tasks --dataset some-set@1.0

    Args:
        source: Task directory, a directory of tasks, a git URL or a registry.json.
        dest: Directory for the copies, with a folder for each task.
        dataset: Dataset of a registry, as NAME or NAME@VERSION.
        overwrite: Replacement of tasks that already exist in DEST.
    """
    imported = import_tasks(source, dest, dataset=dataset, overwrite=overwrite)
    return show_imported(imported, dest, json=json)
