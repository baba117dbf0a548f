"""The times of one leaf's trajectory: setup, generation and scoring."""

from collections.abc import Sequence
from typing import Any

from benchflow_contracts import Event, NodeScored, PhaseEntered, RolloutNode

from .timing import UNMEASURED, Span, verifiers_timing


def leaf_timing(events: Sequence[Event], leaf: RolloutNode) -> dict[str, Any]:
    """Return the trainer row's `timing` of `leaf` from the log of its rollout.

    `setup` is the setup of the first world. The setup of later forks is part of `generation`,
    which ends with the leaf's last step.
    """
    path = {node.id for node in leaf.path}
    phases = [e for e in events if isinstance(e, PhaseEntered) and e.node in path]
    if not phases:
        return verifiers_timing()
    begin = phases[0].ts
    ready = next((e.ts for e in phases if e.phase == "execute"), begin)
    steps = leaf.steps
    return verifiers_timing(
        start_time=events[0].ts,
        setup=Span(begin, ready),
        generation=Span(begin, steps[-1].finished_at if steps else ready),
        scoring=_scoring(events, phases, leaf),
    )


def _scoring(events: Sequence[Event], phases: Sequence[PhaseEntered], leaf: RolloutNode) -> Span:
    verdicts = (e for e in events if isinstance(e, NodeScored) and e.name == "reward")
    scored = next((e for e in verdicts if e.node == leaf.id), None)
    if scored is None:
        return UNMEASURED
    begun = [e.ts for e in phases if e.phase == "verify" and e.ts <= scored.ts]
    return Span(begun[-1], scored.ts) if begun else UNMEASURED
