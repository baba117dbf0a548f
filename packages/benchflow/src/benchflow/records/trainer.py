"""The trainer record of one leaf."""

from typing import Any

from benchflow_contracts import RolloutNode, RolloutTree, Task, VerifyResult

from benchflow.options import RunOptions
from benchflow.trajectories import steps_to_messages, trajectory_to_verifiers_record
from benchflow.trajectories.export import ToolCallFormat


def leaf_record(
    tree: RolloutTree,
    leaf: RolloutNode,
    task: Task,
    options: RunOptions,
    *,
    tool_calls: ToolCallFormat = "verifiers",
) -> dict[str, Any]:
    """Return the Verifiers record of the trajectory that ends in `leaf`."""
    steps = leaf.steps
    verdict = leaf.results.get("reward") or VerifyResult.unscored("the leaf was never graded")
    stop = next((step.stop_reason for step in reversed(steps) if step.stop_reason), None)
    seconds = steps[-1].finished_at - steps[0].started_at if steps else 0.0
    record = trajectory_to_verifiers_record(
        task_id=task.id,
        messages=steps_to_messages(steps, instruction=task.instruction),
        verify_result=verdict,
        model=options.model,
        environment=str(tree.meta.get("environment") or "") or None,
        is_truncated=stop in {"max_tokens", "max_turn_requests"},
        timing={"generation": {"duration": seconds}},
        tool_calls=tool_calls,
        info={
            "rollout_id": tree.rollout_id,
            "leaf": leaf.id,
            "branch": [node.label for node in leaf.path if node.label is not None],
            "path_values": {node.id: node.value.mean for node in leaf.path if node.value},
        },
    )
    return {**record, "stop_condition": stop}
