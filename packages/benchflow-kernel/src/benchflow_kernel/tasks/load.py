"""Load a Task from a directory."""

from pathlib import Path

from benchflow_contracts import Task, TaskConfig, TaskError

from .digest import digest_of
from .reading import read_instruction, read_toml, validated
from .steps import load_steps


def load_task(path: Path) -> Task:
    """Read and check the task directory `path`.

    Raises:
        TaskError: The directory is malformed; `where` or the message names each file and key.
    """
    root = path.resolve()
    if not root.is_dir():
        raise TaskError(
            f"task {str(path)!r} is not a directory", hint="name a directory with a task"
        )
    digest = digest_of(root)
    file = root / "task.toml"
    data = read_toml(file)
    steps = load_steps(root, data)
    own = {name: value for name, value in data.items() if name != "steps"}
    config = validated(TaskConfig, own, f"{file}:", file=file)
    instruction = steps[0].instruction if steps else read_instruction(root / "instruction.md")
    return Task(
        id=config.name,
        path=root,
        instruction=instruction,
        config=config,
        digest=digest,
        steps=steps,
    )


def find_tasks(path: Path) -> list[Task]:
    """Return the task at `path`, or all tasks directly below it, sorted by folder name.

    Folders without a `task.toml` are skipped.

    Raises:
        TaskError: There is no task, one is malformed, or two have one name.
    """
    if (path / "task.toml").is_file():
        return [load_task(path)]
    if not path.is_dir():
        raise TaskError(f"{str(path)!r} is not a directory", hint="name a directory of tasks")
    tasks = [load_task(child) for child in sorted(path.iterdir()) if _is_task(child)]
    if not tasks:
        raise TaskError(f"no task in {str(path)!r}", hint="a task is a folder with a task.toml")
    seen: dict[str, Task] = {}
    for task in tasks:
        other = seen.setdefault(task.id, task)
        if other is not task:
            raise TaskError(
                f"tasks {other.path.name!r} and {task.path.name!r} are both named {task.id!r}",
                where=f"{task.path / 'task.toml'}:name",
            )
    return tasks


def _is_task(path: Path) -> bool:
    return path.is_dir() and (path / "task.toml").is_file()
