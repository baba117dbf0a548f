"""`bench tasks`: write and check tasks."""

from pathlib import Path
from tempfile import TemporaryDirectory

from benchflow_contracts import SandboxProvider, Task, UsageError
from benchflow_kernel import find_tasks

from benchflow.options import RunOptions
from benchflow.own_process import own_process_tests
from benchflow.planes import open_provider
from benchflow.rollout import run_in
from benchflow.scaffold import write_task
from benchflow.task_formats import adapter_for, listed_tasks
from benchflow.task_import import import_tasks

from . import format as fmt
from .cheats import check_cheats
from .flags import Json, Run
from .foreign_tasks import show_checked, show_imported, show_listed
from .output import note, print_json, print_table

_EXPECTED = {"nop": 0.0, "oracle": 1.0}


async def check(
    path: str,
    *,
    options: Run = RunOptions(),
    no_run: bool = False,
    cheat: bool = False,
    json: Json = False,
) -> int:
    """Check tasks: well-formed, doing nothing earns 0, the solution earns 1.

    Tests that seem to run the agent's code in their own process are named. With --cheat,
    every cheat that is shipped is run as the task's agent, and one that gets the full reward
    unseen ends with exit code 1.

    Tasks of Harbor and Terminal-Bench are read and checked, and not run.

    Examples:
        bench tasks check benchmarks/clawsbench/tasks
        bench tasks check my-task --no-run
        bench tasks check my-task --cheat --isolation twin

    Args:
        path: A task directory, or a directory of them.
        options: Where to run; the agent is chosen by the check.
        no_run: Only read the files.
        cheat: Try to get the reward without the work.
    """
    if cheat:
        return await check_cheats(path, options, json=json)
    if (found := adapter_for(path)) is not None:
        return show_checked(listed_tasks(found[1], path), json=json)
    tasks = find_tasks(Path(path))
    for task in tasks:
        for line in own_process_tests(task):
            note(f"warning: {task.id}: tests/{line.file}:{line.line}: {line.why}: {line.text}")
            note(f"hint: {line.remedy}")
    rows: list[dict[str, object]] = []
    if no_run:
        rows = [_read_only(task) for task in tasks]
    else:
        async with open_provider(options) as provider:
            for task in tasks:
                rows += [await _check(provider, task, options, agent) for agent in _EXPECTED]
    if json:
        print_json(rows)
    else:
        shown = [
            (r["task"], r["agent"] or "-", r.get("shown", "-"), "ok" if r["ok"] else r["why"])
            for r in rows
        ]
        print_table(("task", "agent", "reward", "verdict"), shown, empty="no tasks")
    return 0 if all(row["ok"] for row in rows) else 1


def _read_only(task: Task) -> dict[str, object]:
    return {
        "task": task.id,
        "agent": None,
        "reward": None,
        "ok": True,
        "warnings": [line.model_dump() for line in own_process_tests(task)],
    }


async def _check(
    provider: SandboxProvider, task: Task, options: RunOptions, agent: str
) -> dict[str, object]:
    chosen = options.model_copy(update={"agent": agent, "agent_import_path": None, "branch": None})
    with TemporaryDirectory(prefix="bench-check-") as scratch:
        result = await run_in(provider, task, chosen, directory=Path(scratch) / agent)
    expected = _EXPECTED[agent]
    ok = result.reward == expected
    why = f"expected {fmt.reward(expected)}; {fmt.outcome(result.record)}"
    return {
        "task": task.id,
        "agent": agent,
        "reward": result.reward,
        "shown": fmt.reward(result.reward),
        "ok": ok,
        "why": None if ok else why,
        "integrity": result.record.integrity,
        "warnings": [line.model_dump() for line in own_process_tests(task)],
    }


def init(path: Path, *, json: Json = False) -> None:
    """Make a small task that works: edit it into yours.

    Examples:
        bench tasks init my-task && bench tasks check my-task

    Args:
        path: The directory to make; it must not exist.
    """
    files = write_task(path)
    if json:
        print_json({"path": str(path), "files": files})
    else:
        note("\n".join([f"made {path}:", *(f"  {name}" for name in files)]))


def list_tasks(path: str, *, dataset: str | None = None, json: Json = False) -> None:
    """List tasks, ours and those of Harbor and Terminal-Bench.

    Examples:
        bench tasks list benchmarks/clawsbench/tasks
        bench tasks list https://github.com/org/tasks@main
        bench tasks list registry.json --dataset some-set@1.0

    Args:
        path: A task directory, a directory of them, a git URL or a registry.json.
        dataset: The dataset of a registry, as NAME or NAME@VERSION.
    """
    if (found := adapter_for(path)) is not None:
        show_listed(listed_tasks(found[1], path, dataset=dataset), json=json)
        return
    if dataset is not None:
        raise UsageError("--dataset is for a registry.json", hint="leave it out")
    tasks = find_tasks(Path(path))
    if json:
        print_json([{"id": t.id, "path": str(t.path), "digest": t.digest} for t in tasks])
    else:
        rows = [(t.id, t.config.verifier.type, t.config.verifier.isolation, t.path) for t in tasks]
        print_table(("task", "verifier", "isolation", "path"), rows, empty=f"no tasks below {path}")


def bring(
    source: str,
    dest: Path,
    *,
    dataset: str | None = None,
    overwrite: bool = False,
    json: Json = False,
) -> int:
    """Copy tasks of Harbor and Terminal-Bench to a directory, and lock their digests.

    They stay what they are. `tasks.lock.json` beside them says where they came from; a task
    that was changed since is refused. Exit code 1 when a task could not be brought.

    Examples:
        bench tasks import https://github.com/org/tasks@main tasks
        bench tasks import registry.json tasks --dataset some-set@1.0

    Args:
        source: A task directory, a directory of them, a git URL or a registry.json.
        dest: The directory that gets a folder for each task.
        dataset: The dataset of a registry, as NAME or NAME@VERSION.
        overwrite: Replace the folders of tasks that are there already.
    """
    brought = import_tasks(source, dest, dataset=dataset, overwrite=overwrite)
    return show_imported(brought, dest, json=json)
