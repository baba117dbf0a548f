"""`bench tasks check --cheat`: every cheat against a task."""

from benchflow_engine.cheating import CheatOutcome, try_cheats
from benchflow_engine.options import RunOptions
from benchflow_engine.planes import open_provider
from benchflow_engine.task_formats import runnable_tasks
from benchflow_reward.cheats import cheats

from . import format as fmt
from .foreign_tasks import explain_refusals
from .output import note, print_json, print_table


async def check_cheats(
    path: str, options: RunOptions, *, dataset: str | None = None, json: bool
) -> int:
    """Run every cheat on each task; return 1 if a cheat succeeds undetected or could not run."""
    sources = runnable_tasks(path, dataset=dataset, options=options.adapter_options())
    outcomes: list[tuple[str, CheatOutcome]] = []
    async with open_provider(options) as provider:
        for task in sources.tasks:
            tried = await try_cheats(provider, task, options, cheats())
            outcomes += [(task.id, outcome) for outcome in tried]
    for refused in sources.refused:
        explain_refusals(refused, before="not run: ")
    if json:
        print_json([{"task": name, **each.model_dump(mode="json")} for name, each in outcomes])
    else:
        show(outcomes)
    wrong = any(outcome.verdict in {"won", "untried"} for _, outcome in outcomes)
    return int(wrong or bool(sources.refused))


def show(outcomes: list[tuple[str, CheatOutcome]]) -> None:
    """Print what each cheat got, then how many of each verdict there are."""
    rows = [
        (task, one.cheat, fmt.reward(one.reward), one.integrity or "-", one.verdict)
        for task, one in outcomes
    ]
    columns = ("task", "cheat", "reward", "integrity", "verdict")
    print_table(columns, rows, empty="no tasks")
    for task, one in outcomes:
        if one.verdict in {"won", "flagged"}:
            note(f"{task}: {one.cheat} ({one.verdict}): {one.attempt}")
    faults = {(task, one.error, one.hint) for task, one in outcomes if one.verdict == "untried"}
    for task, error, hint in sorted(faults, key=str):
        note(f"not run: {task}: {error}\nhint: {hint}")
    counts = {kind: sum(one.verdict == kind for _, one in outcomes) for kind in _KINDS}
    note(", ".join(f"{count} {kind}" for kind, count in counts.items()))


_KINDS = ("stopped", "flagged", "won", "untried")
