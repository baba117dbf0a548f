"""When one leaf's trajectory was set up, run and verified."""

from typing import Any

from benchflow_contracts import FinishedRollout, NodeScored, PhaseEntered, RolloutNode

from .steps import iso


def trial_times(rollout: FinishedRollout, leaf: RolloutNode) -> dict[str, Any]:
    """Return the times of a trial and of its phases; what was not measured is absent.

    Set-up is that of the first world: the worlds of later forks are made within the agent's
    execution, which ends with the leaf's last step.
    """
    path = {node.id for node in leaf.path}
    phases = [e for e in rollout.events if isinstance(e, PhaseEntered) and e.node in path]
    first: dict[str, float] = {}
    for phase in phases:
        first.setdefault(phase.phase, phase.ts)
    steps = leaf.steps
    acted = steps[-1].finished_at if steps else None
    scored = _scored(rollout, leaf)
    begun = [p.ts for p in phases if p.phase == "verify" and scored is not None and p.ts <= scored]
    spans = {
        "environment_setup": (first.get("setup"), first.get("connect")),
        "agent_setup": (first.get("connect"), first.get("execute")),
        "agent_execution": (first.get("execute"), acted),
        "verifier": (begun[-1] if begun else None, scored),
    }
    started = phases[0].ts if phases else None
    ended = scored or acted or rollout.finished_at
    return {
        **({} if started is None else {"started_at": iso(started)}),
        "finished_at": iso(ended),
        **{name: _span(*span) for name, span in spans.items() if None not in span},
    }


def _scored(rollout: FinishedRollout, leaf: RolloutNode) -> float | None:
    verdicts = (e for e in rollout.events if isinstance(e, NodeScored) and e.name == "reward")
    return next((e.ts for e in verdicts if e.node == leaf.id), None)


def _span(start: float | None, end: float | None) -> dict[str, str]:
    assert start is not None
    assert end is not None
    return {"started_at": iso(start), "finished_at": iso(end)}
