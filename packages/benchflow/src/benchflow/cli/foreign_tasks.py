"""Tasks of other formats, as the adapters in the registry read them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchflow_contracts import ListedTask

from .output import note, print_json, print_table

if TYPE_CHECKING:
    from benchflow_engine.task_import import Imported


def show_listed(tasks: Sequence[ListedTask], *, json: bool) -> None:
    """Print each task, and whether it can run here."""
    if json:
        print_json([as_json(task) for task in tasks])
        return
    facts = list(dict.fromkeys(name for task in tasks for name in task.facts))
    rows = [
        (task.name, task.format, *(task.facts.get(name, "-") for name in facts), verdict(task))
        for task in tasks
    ]
    print_table(("task", "format", *facts, "verdict"), rows, empty="no tasks")


def show_imported(imported: "Imported", directory: Path, *, json: bool) -> int:
    """Print the imported and the refused tasks; return the exit code."""
    if json:
        tasks = {folder: task.model_dump(mode="json") for folder, task in imported.tasks.items()}
        refused = [as_json(task) for task in imported.refused]
        print_json({"directory": str(directory), "tasks": tasks, "refused": refused})
    else:
        rows = [(task.name, task.format, folder) for folder, task in imported.tasks.items()]
        print_table(("task", "format", "folder"), rows, empty="no tasks were imported")
        for task in imported.refused:
            explain(task)
    return 1 if imported.refused else 0


def explain_refusals(task: ListedTask, *, before: str = "") -> None:
    """Print each refusal: reason, place and remedy."""
    for refusal in task.refusals:
        where = f"{refusal.where}: " if refusal.where else ""
        # The name of a directory may contain a newline, and would begin a line of its own.
        place = f"{task.name}: {where}".replace("\n", "\\n")
        note(f"{before}{place}{refusal.reason}\nhint: {refusal.hint}")


def explain(task: ListedTask) -> None:
    """Print each refusal and note."""
    explain_refusals(task)
    for remark in task.notes:
        note(f"{task.name}: note: {remark}")


def verdict(task: ListedTask) -> str:
    """Return `ok` or the reasons that the task cannot run here, in one line."""
    if task.ok:
        return "ok"
    first, *others = task.refusals
    more = f" (and {len(others)} more)" if others else ""
    reason = first.reason if len(first.reason) <= 160 else f"{first.reason[:160]}…"
    return f"{reason}{more}".replace("\n", "; ")


def as_json(task: ListedTask) -> dict[str, object]:
    """Return the task as JSON data."""
    return {"id": task.name, "ok": task.ok, **task.model_dump(mode="json", exclude={"name"})}
