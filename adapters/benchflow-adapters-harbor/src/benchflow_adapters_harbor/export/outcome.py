"""The end of a trial: its rewards, or the exception that replaces them."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchflow_contracts import (
    NO_REWARDS,
    FinishedRollout,
    NodeError,
    NodeFailed,
    NodeScored,
    PhaseEntered,
    RolloutNode,
    VerifyResult,
)

from .plain import plain_text
from .steps import iso

_MODES = {"hermetic": "separate", "twin": "shared", "shared": "shared"}
"""In a twin, the tests see the agent's files, as in Harbor's `shared`."""

_START = {"setup", "start", "provision", "readiness", "teardown"}
_HARBORS_NAMES = {
    "AgentExitError": "NonZeroAgentExitCodeError",
    "PriorContextError": "ValueError",
    "ReadinessError": "HealthcheckError",
    "SandboxError": "RuntimeError",
    "SetupError": "RuntimeError",
}
"""Errors that have another name in Harbor. Grading errors already have Harbor's names."""


def rewards(verdict: VerifyResult | None, task_format: str) -> dict[str, float] | None:
    """Return the rewards by name: the return as `reward`, then its parts.

    A task of Harbor has only the names that its own tests gave.
    """
    if verdict is not None:
        verdict = verdict.counted()
    if verdict is not None and verdict.error_type == NO_REWARDS:
        return {}
    if verdict is None or verdict.reward is None:
        return None
    if task_format != "benchflow" and verdict.items:
        return {plain_text(key): value for key, value in verdict.items.items()}
    parts = {plain_text(key): value for key, value in verdict.items.items() if key != "reward"}
    return {"reward": verdict.reward, **parts}


def verifier_mode(rollout: FinishedRollout, leaf: RolloutNode) -> str | None:
    """Return Harbor's name for the leaf's grading mode; None outside a sandbox.

    As in Harbor, a leaf without a verdict has the mode that would have been used.
    """
    verdict = leaf.results.get("reward")
    if verdict is None or verdict.reward is None:
        return _MODES.get(str(rollout.tree.meta.get("grading")))
    return _MODES.get(verdict.grading)


def exception_info(
    rollout: FinishedRollout, leaf: RolloutNode, steps: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any] | None:
    """Return why a leaf has no reward, or the error before a grading that still happened.

    `steps` are Harbor's step results. An error in a step is reported only there. One case
    differs: Harbor would ignore a step without a verdict and take its reward from the other
    steps. The trial then also says why it has no reward.
    """
    if steps and _steps_report_failure(leaf, steps):
        return None
    error = _failure(rollout, leaf)
    if error is None:
        return None
    if error.type == "SandboxTimeoutError" and _in_start(rollout):
        error = error.model_copy(update={"type": "EnvironmentStartTimeoutError"})
    return info_of(error, _failed_at(rollout, leaf))


def _steps_report_failure(leaf: RolloutNode, steps: Sequence[Mapping[str, Any]]) -> bool:
    if leaf.reward is not None:
        return True
    ended = steps[-1]["exception_info"] is not None or "reward" in leaf.results
    verdicts = [step["verifier_result"] for step in steps]
    return ended and not any(verdict["rewards"] for verdict in verdicts if verdict is not None)


def _in_start(rollout: FinishedRollout) -> bool:
    return all(e.phase in _START for e in rollout.events if isinstance(e, PhaseEntered))


def info_of(error: NodeError, at: float) -> dict[str, Any]:
    """Return Harbor's `ExceptionInfo`; `at` is in seconds since the epoch."""
    remedy = "" if error.hint is None else f"\nhint: {error.hint}"
    where = f"{error.type} at the {error.boundary} boundary{remedy}"
    return {
        "exception_type": plain_text(_HARBORS_NAMES.get(error.type, error.type)),
        "exception_message": plain_text(error.message),
        "exception_traceback": plain_text(where),
        "occurred_at": iso(at),
    }


def _failure(rollout: FinishedRollout, leaf: RolloutNode) -> NodeError | None:
    tree, verdict = rollout.tree, leaf.results.get("reward")
    if leaf.error is not None or leaf.reward is not None:
        return leaf.error
    failed = grading_error(verdict)
    if failed is not None or (verdict is not None and verdict.error_type == NO_REWARDS):
        return failed
    if tree.status == "cancelled":
        # Harbor counts cancelled trials by this name.
        message = "the rollout was cancelled"
        return NodeError(boundary="rollout", type="CancelledError", message=message)
    unfinished = "the rollout has not ended" if tree.status == "running" else "it was never graded"
    return tree.error or NodeError(boundary="reward", type="RewardError", message=unfinished)


def grading_error(verdict: VerifyResult | None) -> NodeError | None:
    """Return why there is no reward, if grading failed."""
    if verdict is None:
        return None
    verdict = verdict.counted()
    if verdict.error is None or verdict.error_type == NO_REWARDS:
        return None
    kind = verdict.error_type or "RewardError"
    return NodeError(boundary="reward", type=kind, message=verdict.error)


def _failed_at(rollout: FinishedRollout, leaf: RolloutNode) -> float:
    end_events = (NodeFailed, NodeScored)
    times = [e.ts for e in rollout.events if isinstance(e, end_events) and e.node == leaf.id]
    return times[-1] if times else rollout.finished_at
