"""The states of a stored rollout's nodes, and why a node has none."""

from typing import Any, Final, cast

from benchflow_contracts import Model, RolloutNode, RolloutTree, StateUnavailable

from .stored_rollout import StoredRollout

_MODES: Final = ("none", "leaves", "forks", "all")
"""As `CaptureState`; each records the nodes of the ones before it."""


class MissingState(Model):
    """Why a node does not have a recorded state."""

    node: str
    reason: str
    flag: str | None = None
    """The option of `bench run` that records the state of such a node, if there is one."""


def missing_state(stored: StoredRollout, node: RolloutNode) -> MissingState | None:
    """Return why `node` has no recorded state, or None if it has one. Read no state."""
    if node.state_ref is not None:
        return None
    for event in stored.log.events:
        if isinstance(event, StateUnavailable) and event.node == node.id:
            return MissingState(node=node.id, reason=event.reason)
    needed, mode = _needed_mode(node), _mode(stored.tree)
    if needed is None:
        reason = "a turn of the agent was running, and only its start and its end are recorded"
        return MissingState(node=node.id, reason=reason)
    if _MODES.index(mode) < _MODES.index(needed):
        reason = f"the rollout recorded the states of {_nodes(mode)}"
        return MissingState(node=node.id, reason=reason, flag=f"--capture-state {needed}")
    if not any(each.state_ref for each in stored.tree.nodes):
        reason = "no node of the rollout has a state; a task without an environment has none"
    else:
        reason = (
            "its branch ended before the state was read, or the rollout was resumed below the node"
        )
    return MissingState(node=node.id, reason=reason)


def _needed_mode(node: RolloutNode) -> str | None:
    """Return the mode that records a node, or None if no mode does."""
    if not node.children:
        return "leaves"
    if node.parent is None or (node.branch is not None and node.branch.children):
        return "forks"
    return "all" if node.step is not None and node.step.stop_reason is not None else None


def _mode(tree: RolloutTree) -> str:
    """Return the mode of a rollout. Version 0.8 and before recorded leaves, or nothing."""
    config = cast("dict[str, Any]", tree.meta.get("config") or {})
    mode = config.get("capture_state", True)
    if isinstance(mode, bool):
        return "leaves" if mode else "none"
    return mode if mode in _MODES else "none"


def _nodes(mode: str) -> str:
    return {"none": "no nodes", "leaves": "leaves only", "forks": "root, forks and leaves"}[mode]
