"""How a trial ended: its rewards, or the exception that is recorded instead."""

from typing import Any

from benchflow_contracts import FinishedRollout, NodeError, NodeFailed, NodeScored, RolloutNode

from .plain import plain_text
from .steps import iso

_MODES = {"hermetic": "separate", "twin": "shared", "shared": "shared"}
"""A twin's tests see the agent's file system, as those of Harbor's `shared` do."""

_HARBORS_NAMES = {
    "AgentExitError": "NonZeroAgentExitCodeError",
    "ReadinessError": "HealthcheckError",
}
"""Where Harbor has another name for what happened; grading errors have its names already."""


def rewards(leaf: RolloutNode, task_format: str) -> dict[str, float] | None:
    """Return the rewards by name, the leaf's return as `reward` before its parts.

    A task of Harbor's has the names that its own tests gave, and no other.
    """
    graded = leaf.results.get("reward")
    verdict = None if graded is None else graded.counted()
    if verdict is None or verdict.reward is None:
        return None
    if task_format != "benchflow" and verdict.items:
        return {plain_text(key): value for key, value in verdict.items.items()}
    parts = {plain_text(key): value for key, value in verdict.items.items() if key != "reward"}
    return {"reward": verdict.reward, **parts}


def verifier_mode(leaf: RolloutNode) -> str | None:
    """Return Harbor's name for how the leaf was graded; `None` outside of a sandbox."""
    verdict = leaf.results.get("reward")
    return None if verdict is None else _MODES.get(verdict.grading)


def exception_info(rollout: FinishedRollout, leaf: RolloutNode) -> dict[str, Any] | None:
    """Return why a leaf has no reward, or what went wrong before it was graded all the same."""
    error = _failure(rollout, leaf)
    if error is None:
        return None
    remedy = "" if error.hint is None else f"\nhint: {error.hint}"
    return {
        "exception_type": plain_text(_HARBORS_NAMES.get(error.type, error.type)),
        "exception_message": plain_text(error.message),
        "exception_traceback": plain_text(f"at the {error.boundary} boundary{remedy}"),
        "occurred_at": iso(_failed_at(rollout, leaf)),
    }


def _failure(rollout: FinishedRollout, leaf: RolloutNode) -> NodeError | None:
    tree = rollout.tree
    if leaf.error is not None or leaf.reward is not None:
        return leaf.error
    graded = leaf.results.get("reward")
    verdict = None if graded is None else graded.counted()
    if verdict is not None and verdict.error is not None:
        return NodeError(
            boundary="reward", type=verdict.error_type or "RewardError", message=verdict.error
        )
    if tree.status == "cancelled":
        # Harbor counts cancelled trials by this name.
        message = "the rollout was cancelled"
        return NodeError(boundary="rollout", type="CancelledError", message=message)
    unfinished = "the rollout has not ended" if tree.status == "running" else "it was never graded"
    return tree.error or NodeError(boundary="reward", type="RewardError", message=unfinished)


def _failed_at(rollout: FinishedRollout, leaf: RolloutNode) -> float:
    told = (NodeFailed, NodeScored)
    times = [e.ts for e in rollout.events if isinstance(e, told) and e.node == leaf.id]
    return times[-1] if times else rollout.finished_at
