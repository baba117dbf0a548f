"""The times of the setup, the agent and the verifier of one leaf."""

from typing import Any

from benchflow_contracts import FinishedRollout, NodeScored, PhaseEntered, RolloutNode

from .steps import iso


def trial_times(rollout: FinishedRollout, leaf: RolloutNode, *, in_steps: bool) -> dict[str, Any]:
    """Return the times of a trial and of its phases. A time that was not measured is absent.

    With `in_steps`, only the steps have times of the agent and the verifier, as in Harbor.
    The setup is that of the first world. Later forks happen during the agent's execution,
    which ends with the leaf's last step.
    """
    path = {node.id for node in leaf.path}
    phases = [e for e in rollout.events if isinstance(e, PhaseEntered) and e.node in path]
    first: dict[str, float] = {}
    for phase in phases:
        first.setdefault(phase.phase, phase.ts)
    steps = leaf.steps
    acted = steps[-1].finished_at if steps else None
    scored = _scored(rollout, leaf)
    begun = None if scored is None else verified_since(rollout, leaf, scored)
    spans = {
        "environment_setup": (first.get("setup"), first.get("connect")),
        "agent_setup": (first.get("connect"), first.get("execute")),
    }
    if not in_steps:
        spans["agent_execution"] = (first.get("execute"), acted)
        spans["verifier"] = (begun, scored)
    started = phases[0].ts if phases else None
    ended = scored or acted or rollout.finished_at
    return {
        **({} if started is None else {"started_at": iso(started)}),
        "finished_at": iso(ended),
        **{
            name: span(start, end)
            for name, (start, end) in spans.items()
            if start is not None and end is not None
        },
    }


def verified_since(rollout: FinishedRollout, node: RolloutNode, scored: float) -> float | None:
    """Return when the verifier of the verdict at `node` began, or None if none ran."""
    path = {each.id for each in node.path}
    phases = [e for e in rollout.events if isinstance(e, PhaseEntered) and e.node in path]
    last = next((e for e in reversed(phases) if e.ts <= scored), None)
    return last.ts if last is not None and last.phase == "verify" else None


def span(start: float, end: float) -> dict[str, str]:
    """Return Harbor's `TimingInfo`. Times are in seconds since the epoch."""
    return {"started_at": iso(start), "finished_at": iso(end)}


def _scored(rollout: FinishedRollout, leaf: RolloutNode) -> float | None:
    verdicts = (e for e in rollout.events if isinstance(e, NodeScored) and e.name == "reward")
    return next((e.ts for e in verdicts if e.node == leaf.id), None)
