"""`bench tasks check --cheat`: every cheat against a task."""

from benchflow_reward.cheats import cheats

from benchflow.cheating import CheatOutcome, try_cheats
from benchflow.options import RunOptions
from benchflow.planes import open_provider
from benchflow.task_formats import runnable_tasks

from . import format as fmt
from .output import note, print_json, print_table


async def check_cheats(path: str, options: RunOptions, *, json: bool) -> int:
    """Try each task below `path`; return 1 when a cheat gets the full reward unseen."""
    found = runnable_tasks(path)
    outcomes: list[tuple[str, CheatOutcome]] = []
    async with open_provider(options) as provider:
        for task in found.tasks:
            tried = await try_cheats(provider, task, options, cheats())
            outcomes += [(task.id, outcome) for outcome in tried]
    for refused in found.refused:
        note(f"not tried: {refused.name}: it cannot be run here")
    if json:
        print_json([{"task": name, **each.model_dump(mode="json")} for name, each in outcomes])
    else:
        _show(outcomes)
    return int(any(outcome.verdict == "won" for _, outcome in outcomes))


def _show(outcomes: list[tuple[str, CheatOutcome]]) -> None:
    rows = [
        (task, one.cheat, fmt.reward(one.reward), one.integrity or "-", one.verdict)
        for task, one in outcomes
    ]
    columns = ("task", "cheat", "reward", "integrity", "verdict")
    print_table(columns, rows, empty="no tasks")
    for task, one in outcomes:
        if one.verdict != "stopped":
            note(f"{task}: {one.cheat} ({one.verdict}): {one.attempt}")
    counts = {kind: sum(one.verdict == kind for _, one in outcomes) for kind in _KINDS}
    note(", ".join(f"{count} {kind}" for kind, count in counts.items()))


_KINDS = ("stopped", "flagged", "won")
