"""`timing.json`: how long each phase of each world took."""

from collections.abc import Sequence
from typing import Any

from benchflow_contracts import Event, PhaseEntered, RolloutTree, WorldClosed


def phase_times(events: Sequence[Event], tree: RolloutTree) -> dict[str, Any]:
    """Return seconds per phase of every world (by node), of its forks, and of the whole rollout.

    A phase ends where the same world's next phase begins, the last one when the world was torn
    down. `forks` has `RolloutNode.took_sec` of each node that has any.
    """
    forks = {node.id: node.took_sec for node in tree.nodes if node.took_sec}
    if not events:
        return {"total_sec": 0.0, "worlds": {}, "forks": forks}
    worlds: dict[str, dict[str, float]] = {}
    running: dict[str, PhaseEntered] = {}
    end = events[-1].ts
    for event in events:
        if not isinstance(event, PhaseEntered | WorldClosed):
            continue
        previous = running.pop(event.node, None)
        if previous is not None:
            _add(worlds, previous, event.ts)
        if isinstance(event, PhaseEntered):
            running[event.node] = event
    for last in running.values():
        _add(worlds, last, end)
    return {"total_sec": end - events[0].ts, "worlds": worlds, "forks": forks}


def _add(worlds: dict[str, dict[str, float]], phase: PhaseEntered, until: float) -> None:
    times = worlds.setdefault(phase.node, {})
    times[phase.phase] = times.get(phase.phase, 0.0) + until - phase.ts
