"""The verdicts on the steps of a task of several, as the tree holds them."""

from collections.abc import Mapping

from benchflow_contracts import RolloutNode, VerifyResult


def verdict_name(step: str, reward: str = "reward") -> str:
    """Return the name under which a node holds the verdict of `reward` on a step of the task."""
    return f"{step}/{reward}"


def step_verdicts(leaf: RolloutNode) -> Mapping[str, tuple[RolloutNode, VerifyResult]]:
    """Return the verdict on each step that was graded on the way to `leaf`, and where.

    By the steps' names, in their order; empty in a task of one prompt. A step that was
    graded again further down has the verdict from there.
    """
    found: dict[str, tuple[RolloutNode, VerifyResult]] = {}
    for node in leaf.path:
        found |= {step: (node, result) for step, result in verdicts_at(node).items()}
    return found


def verdicts_at(node: RolloutNode) -> Mapping[str, VerifyResult]:
    """Return the verdicts on the steps of the task that ended at `node`, by their names."""
    named = ((name.rpartition("/"), result) for name, result in node.results.items())
    return {step: result for (step, _, reward), result in named if step and reward == "reward"}
