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
        for name, result in node.results.items():
            step, _, reward = name.rpartition("/")
            if step and reward == "reward":
                found[step] = (node, result)
    return found
