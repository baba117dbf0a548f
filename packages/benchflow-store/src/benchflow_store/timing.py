"""`timing.json`: the duration of each phase of each world."""

from collections.abc import Sequence
from typing import Any

from benchflow_contracts import Event, PhaseEntered, RolloutTree, WorldClosed


def phase_times(events: Sequence[Event], tree: RolloutTree) -> dict[str, Any]:
    """Return the seconds of each phase by world, of the forks, and of the whole rollout.

    A phase ends when the next phase of the same world begins. The last phase ends with the
    teardown of the world. `forks` has the `took_sec` of each node.
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
