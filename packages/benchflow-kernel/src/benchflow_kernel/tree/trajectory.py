"""Trajectories: paths from the root to a leaf, computed and not stored."""

from benchflow_contracts import RolloutNode, RolloutTree, Trajectory


def trajectory(tree: RolloutTree, leaf: RolloutNode) -> Trajectory:
    """Return the path from the root of `tree` to `leaf`, with the leaf's reward."""
    path = leaf.path
    return Trajectory(
        rollout_id=tree.rollout_id,
        task_id=tree.task_id,
        leaf=leaf.id,
        branch=tuple(node.label for node in path if node.label is not None),
        steps=tuple(node.step for node in path if node.step is not None),
        reward=leaf.reward,
    )


def trajectories(tree: RolloutTree) -> list[Trajectory]:
    """Return one trajectory for each leaf, in tree order, also for failed leaves."""
    return [trajectory(tree, leaf) for leaf in tree.leaves]
