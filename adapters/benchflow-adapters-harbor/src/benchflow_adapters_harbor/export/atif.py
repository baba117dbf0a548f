"""A root-to-leaf path as an ATIF v1.8 trajectory.

Source of the format: harbor 0.24.0, `harbor.models.trajectories`.
"""

from collections.abc import Mapping
from typing import Any

from benchflow_contracts import FinishedRollout, RolloutNode

from .plain import plain, plain_text
from .step_results import GradedStep
from .steps import node_steps

_NOBODY = ""
"""An id that no node has."""


def owners(rollout: FinishedRollout) -> dict[str, str]:
    """Return for every node the leaf whose trajectory has the node as an original.

    The owner is the first scored leaf below the node, else the first leaf. So each step that
    led to a score is an original in exactly one scored trajectory. The steps of an earlier
    rollout that this rollout continues are copies everywhere; they have no owner.
    """
    owned = {node.id: _NOBODY for node in rollout.tree.nodes if _is_continued(rollout, node)}
    for leaf in sorted(rollout.tree.leaves, key=lambda leaf: leaf.reward is None):
        for node in leaf.path:
            owned.setdefault(node.id, leaf.id)
    return owned


def _is_continued(rollout: FinishedRollout, node: RolloutNode) -> bool:
    if node.step is None or not rollout.events or "continued_from" not in rollout.tree.meta:
        return False
    return node.step.finished_at < rollout.events[0].ts


def trajectory(
    rollout: FinishedRollout,
    leaf: RolloutNode,
    owned: Mapping[str, str],
    part: GradedStep | None = None,
) -> dict[str, Any] | None:
    """Return the trajectory that ends in `leaf`, or None if the agent never acted.

    With `part`, return the trajectory of one step of the task.

    Every leaf below a shared prefix repeats its steps. All but the owner's trajectory mark them
    `is_copied_context`. `final_metrics` leave copies out, so that the sum over a tree is the
    real use.
    """
    steps: list[dict[str, Any]] = []
    for node in leaf.path if part is None else part.nodes:
        copied = owned[node.id] != leaf.id
        for step in node_steps(rollout, node):
            mark = {"is_copied_context": True} if copied else {}
            steps.append({"step_id": len(steps) + 1, **step, **mark})
    if not steps:
        return None
    rollout_id = plain_text(rollout.tree.rollout_id)
    agent = {"name": plain_text(rollout.agent), "version": "unknown"}
    if rollout.model is not None:
        agent["model_name"] = plain_text(rollout.model)
    return {
        "schema_version": "ATIF-v1.8",
        "session_id": rollout_id,
        "trajectory_id": plain_text(f"{rollout_id}-{leaf.id}{'' if part is None else part.name}"),
        "agent": agent,
        "steps": steps,
        "final_metrics": _totals([step for step in steps if "is_copied_context" not in step]),
        "notes": "final_metrics leave out the steps that are is_copied_context",
        "extra": {"benchflow": leaf_facts(rollout, leaf)},
    }


def leaf_facts(rollout: FinishedRollout, leaf: RolloutNode) -> dict[str, Any]:
    """Return the facts about `leaf` that have no field in Harbor's formats."""
    verdict = leaf.results.get("reward")
    facts = {
        "rollout_id": rollout.tree.rollout_id,
        "leaf": leaf.id,
        "branch": [node.label for node in leaf.path if node.label is not None],
        "values": {node.id: node.value.mean for node in leaf.path if node.value is not None},
        "credit": None if leaf.credit is None else leaf.credit.model_dump(),
        "reward": leaf.reward,
        "grading": None if verdict is None else verdict.grading,
        "integrity": None if verdict is None else verdict.integrity,
        "sandbox": rollout.sandbox,
        "images": rollout.tree.images,
        "verifier_image": None if verdict is None else verdict.meta.get("image"),
        "shared_prefix": "once",
        "continued_from": rollout.tree.meta.get("continued_from"),
    }
    plain_facts: dict[str, Any] = plain(facts)
    return plain_facts


def _totals(steps: list[dict[str, Any]]) -> dict[str, Any]:
    measured = [step["metrics"] for step in steps if "metrics" in step]
    totals: dict[str, Any] = {"total_steps": len(steps)}
    if measured:
        for name in ("prompt", "completion", "cached"):
            totals[f"total_{name}_tokens"] = sum(each[f"{name}_tokens"] for each in measured)
        costs = [each["cost_usd"] for each in measured if "cost_usd" in each]
        if costs:
            totals["total_cost_usd"] = sum(costs)
    return totals
