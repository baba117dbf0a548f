"""The trainer record of one leaf."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from benchflow_contracts import Event, RolloutNode, RolloutTree, Step, Task, VerifyResult
from benchflow_kernel import step_verdicts

from benchflow.options import RunOptions
from benchflow.trajectories import steps_to_messages, trajectory_to_verifiers_record
from benchflow.trajectories.tool_calls import ToolCallFormat

from .leaf_timing import leaf_timing


def leaf_record(
    tree: RolloutTree,
    leaf: RolloutNode,
    task: Task,
    options: RunOptions,
    events: Sequence[Event],
    *,
    tool_calls: ToolCallFormat = "verifiers",
) -> dict[str, Any]:
    """Return the Verifiers record of the trajectory that ends in `leaf`.

    `events` is the log that `tree` was folded from; it holds the times.
    """
    steps = leaf.steps
    verdict = leaf.results.get("reward") or VerifyResult.unscored("the leaf was never graded")
    verdict = verdict.counted()
    stop = next((step.stop_reason for step in reversed(steps) if step.stop_reason), None)
    return trajectory_to_verifiers_record(
        task_id=task.id,
        messages=steps_to_messages(steps, instruction=task.instruction),
        verify_result=verdict,
        model=options.model,
        environment=_environment(tree),
        is_truncated=stop in {"max_tokens", "max_turn_requests"},
        stop_condition=stop,
        timing=leaf_timing(events, leaf),
        token_usage=_token_usage(steps),
        tool_calls=tool_calls,
        info={
            "rollout_id": tree.rollout_id,
            "leaf": leaf.id,
            "branch": [node.label for node in leaf.path if node.label is not None],
            "path_values": [
                {"node": node.id, "value": node.value.mean} for node in leaf.path if node.value
            ],
            "advantage": None if leaf.credit is None else leaf.credit.model_dump(),
            **_task_steps(leaf),
        },
    )


def _task_steps(leaf: RolloutNode) -> dict[str, Any]:
    """Return the verdicts on the steps of the task, each with the node where it ended."""
    verdicts = step_verdicts(leaf).items()
    told = [
        {"name": name, "node": node.id, "reward": r.counted().reward}
        for name, (node, r) in verdicts
    ]
    return {"task_steps": told} if told else {}


def _environment(tree: RolloutTree) -> str | None:
    config = cast("Mapping[str, Any]", tree.meta.get("config", {}))
    name: str | None = config.get("labels", {}).get("environment")
    return name


def _token_usage(steps: Sequence[Step]) -> dict[str, float] | None:
    reported = [step.usage for step in steps if step.usage is not None]
    if not reported:
        return None
    return {
        "input_tokens": float(sum(usage.input_tokens for usage in reported)),
        "output_tokens": float(sum(usage.output_tokens for usage in reported)),
    }
