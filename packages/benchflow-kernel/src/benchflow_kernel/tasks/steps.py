"""Read `[[steps]]`: prompts that are graded separately, and their folders."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from benchflow_contracts import TaskError, TaskParts, TaskStep

from .reading import read_instruction, read_model

_TASK_DEFAULTS: Final = ("agent", "verifier")
"""Tables of the task with the defaults of each step."""

_FOLDER_FIELDS: Final = ("instruction", "parts")
"""Fields of a step that come from its folder."""


def load_steps(root: Path, data: Mapping[str, Any]) -> tuple[TaskStep, ...]:
    """Return the steps in `data`, the tables of `task.toml`.

    The folder of a step is `steps/NAME`. It has `instruction.md` and optionally `tests/`
    (added over the task's own), `solution/` and `workdir/`.

    Raises:
        TaskError: A step is malformed, a folder has no step, or a name occurs twice.
    """
    file = root / "task.toml"
    tables = data.get("steps", [])
    if not isinstance(tables, list) or not all(
        isinstance(table, dict) for table in cast("list[object]", tables)
    ):
        raise TaskError("must be tables", where=f"{file}:steps", hint="write [[steps]]")
    step_tables = cast("list[dict[str, Any]]", tables)
    steps = tuple(_step(root, data, table, index) for index, table in enumerate(step_tables))
    _check_names(root, steps)
    return steps


def _step(root: Path, data: Mapping[str, Any], table: Mapping[str, Any], index: int) -> TaskStep:
    where = f"{root / 'task.toml'}:steps.{index}."
    foreign = next((name for name in _FOLDER_FIELDS if name in table), None)
    if foreign is not None:
        raise TaskError(
            "is not a key of a step",
            where=where + foreign,
            hint="the step has it from its folder, steps/NAME",
        )
    values = {**table, "instruction": ""}
    for name in _TASK_DEFAULTS:
        own, defaults = table.get(name, {}), data.get(name, {})
        if isinstance(own, dict) and isinstance(defaults, dict):
            values[name] = {**cast("dict[str, Any]", defaults), **cast("dict[str, Any]", own)}
    if isinstance(table.get("min_reward"), int | float):
        values["min_reward"] = {"reward": table["min_reward"]}
    step = read_model(TaskStep, values, where)
    folder = root / "steps" / step.name
    parts = _parts(root, folder)
    text = read_instruction(folder / "instruction.md")
    if step.verifier.type == "script" and not _has_tests(parts):
        raise TaskError(
            f"step {step.name!r} has no tests",
            where=str(folder / "tests"),
            hint="add tests/test.sh to its folder, or one for all steps to the task",
        )
    return step.model_copy(update={"instruction": text, "parts": parts})


def _parts(root: Path, folder: Path) -> TaskParts:
    own = TaskParts.of(root)
    tests = folder / "tests"
    workdir = folder / "workdir"
    solution = folder / "solution"
    return TaskParts(
        tests=(*own.tests, tests) if tests.is_dir() else own.tests,
        workdir_files=workdir if workdir.is_dir() else None,
        solution=solution if solution.is_dir() else None,
    )


def _has_tests(parts: TaskParts) -> bool:
    return any((directory / parts.test_script).is_file() for directory in parts.tests)


def _check_names(root: Path, steps: Sequence[TaskStep]) -> None:
    if not steps:
        return
    names = [step.name for step in steps]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise TaskError(f"two steps are named {duplicate!r}", where=f"{root / 'task.toml'}:steps")
    home = root / "steps"
    others = sorted(entry.name for entry in home.iterdir()) if home.is_dir() else []
    stray = next((name for name in others if name not in names), None)
    if stray is not None:
        raise TaskError(
            f"folder {stray!r} does not belong to a step",
            where=str(home / stray),
            hint="declare it in task.toml as [[steps]], or remove it",
        )
    if (root / "instruction.md").exists():
        raise TaskError(
            "the file is not used: each step has its own instruction",
            where=str(root / "instruction.md"),
            hint="move it into the folders of the steps",
        )
