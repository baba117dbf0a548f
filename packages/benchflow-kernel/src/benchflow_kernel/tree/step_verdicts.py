"""Verdicts on the steps of a task with several steps."""

from collections.abc import Mapping

from benchflow_contracts import RolloutNode, VerifyResult


def verdict_name(step: str, reward: str = "reward") -> str:
    """Return the key of `reward`'s verdict on a step in the results of a node."""
    return f"{step}/{reward}"


def step_verdicts(leaf: RolloutNode) -> Mapping[str, tuple[RolloutNode, VerifyResult]]:
    """Return the verdict on each step that was graded on the path to `leaf`, and its node.

    The keys are the names of the steps, in order. A task of one prompt has none. If a step
    was graded again further down, the later verdict counts.
    """
    found: dict[str, tuple[RolloutNode, VerifyResult]] = {}
    for node in leaf.path:
        found |= {step: (node, result) for step, result in verdicts_at(node).items()}
    return found


def verdicts_at(node: RolloutNode) -> Mapping[str, VerifyResult]:
    """Return the verdicts on the steps that ended at `node`, by the name of the step."""
    named = ((name.rpartition("/"), result) for name, result in node.results.items())
    return {step: result for (step, _, reward), result in named if step and reward == "reward"}
