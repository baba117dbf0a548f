"""Views of the rollout tree."""

from itertools import pairwise

from hypothesis import given, strategies as st

from benchflow_contracts import RolloutNode, RolloutTree, Step, VerifyResult


def grow(parents: list[int]) -> list[RolloutNode]:
    """Return nodes where node i + 1 hangs below the one that `parents[i]` points to."""
    nodes = [RolloutNode(id="n0")]
    for number, parent in enumerate(parents, start=1):
        step = Step(id=f"s{number}", started_at=0, finished_at=0)
        node = RolloutNode(id=f"n{number}", parent=nodes[parent % len(nodes)], step=step)
        nodes[parent % len(nodes)].children.append(node)
        nodes.append(node)
    return nodes


trees = st.lists(st.integers(0, 10_000), max_size=30).map(grow)


@given(trees)
def test_a_path_leads_from_the_root_to_the_node(nodes: list[RolloutNode]):
    for node in nodes:
        path = node.path
        assert path[0] is nodes[0]
        assert path[-1] is node
        assert all(below.parent is above for above, below in pairwise(path))
        assert len(node.steps) == len(path) - 1


@given(trees)
def test_a_subtree_has_every_node_once_with_parents_first(nodes: list[RolloutNode]):
    order = [node.id for node in nodes[0].subtree]
    assert sorted(order) == sorted(node.id for node in nodes)
    for node in nodes[1:]:
        assert node.parent is not None
        assert order.index(node.parent.id) < order.index(node.id)
        siblings = [child.id for child in node.parent.children]
        assert sorted(siblings, key=order.index) == siblings


@given(trees)
def test_leaves_are_the_nodes_without_children(nodes: list[RolloutNode]):
    wanted = {node.id for node in nodes if not node.children}
    assert {leaf.id for leaf in nodes[0].leaves} == wanted
    tree = RolloutTree(
        rollout_id="r", task_id="t", root=nodes[0], index={node.id: node for node in nodes}
    )
    assert [leaf.id for leaf in tree.leaves] == [leaf.id for leaf in nodes[0].leaves]
    assert sum(1 for _ in tree.nodes) == len(nodes)


def test_a_deep_tree_needs_no_recursion():
    nodes = grow(list(range(5000)))
    assert len(nodes[-1].path) == 5001
    assert nodes[0].leaves == [nodes[-1]]


def test_the_return_is_the_result_named_reward_and_absence_is_not_zero():
    node = RolloutNode(id="n")
    assert node.reward is None
    node.results["other"] = VerifyResult(reward=1.0)
    assert node.reward is None
    node.results["reward"] = VerifyResult.unscored("it broke")
    assert node.reward is None
    node.results["reward"] = VerifyResult(reward=0.0)
    assert node.reward == 0.0
