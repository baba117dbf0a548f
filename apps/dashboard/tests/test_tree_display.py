"""The drawn part of a tree: each node is drawn or counted once, and folds respect the reader."""

from benchflow_contracts import RolloutTree
from benchflow_dashboard.tree.display import DisplayTree, Folding, depth_first
from hypothesis import given
from hypothesis import strategies as st
from made_trees import tree_of_all_kinds, tree_of_climbs

trees = st.lists(st.sampled_from([0, 0, 0, 0, 1, 2, 5]), max_size=60).map(tree_of_climbs)
names = st.frozensets(st.integers(0, 60).map("n{}".format), max_size=4)
foldings = st.builds(
    Folding,
    chains=st.booleans(),
    opened=names,
    closed=names,
    visible=names,
    budget=st.integers(1, 70),
)


def drawn(display: DisplayTree) -> list[str]:
    return [node.id for node in display.nodes]


@given(trees, foldings)
def test_each_node_is_drawn_or_counted_by_one_fold(tree: RolloutTree, folding: Folding) -> None:
    display = DisplayTree.of(tree, folding)
    shown = {"": 1, "chain": 0, "subtree": 1}
    counted = sum(
        shown[fold] + hidden for fold, hidden in zip(display.folds, display.hidden, strict=True)
    )
    assert counted == len(tree.index)
    assert len(set(drawn(display))) == len(display.nodes)


@given(trees, foldings)
def test_the_drawn_nodes_are_in_depth_first_order_with_their_levels(
    tree: RolloutTree, folding: Folding
) -> None:
    display = DisplayTree.of(tree, folding)
    order = {node.id: place for place, node in enumerate(depth_first(tree.root))}
    places = [order[name] for name in drawn(display)]
    assert places == sorted(places)
    for place, parent in enumerate(display.parents):
        assert parent < place
        assert display.depths[place] == (0 if parent < 0 else display.depths[parent] + 1)
        if parent >= 0:
            assert place in display.children[parent]
            assert display.nodes[parent] in display.nodes[place].path


@given(trees, foldings)
def test_a_visible_node_is_never_inside_a_fold(tree: RolloutTree, folding: Folding) -> None:
    display = DisplayTree.of(tree, folding)
    assert folding.visible & set(tree.index) <= set(drawn(display))


@given(trees, st.integers(1, 70))
def test_the_budget_bounds_the_drawn_nodes(tree: RolloutTree, budget: int) -> None:
    assert len(DisplayTree.of(tree, Folding(budget=budget)).nodes) <= budget


@given(trees)
def test_without_folds_every_node_is_drawn(tree: RolloutTree) -> None:
    display = DisplayTree.of(tree, Folding(chains=False))
    assert drawn(display) == [node.id for node in depth_first(tree.root)]
    assert not any(display.folds)


def test_a_long_path_is_its_ends_and_one_number() -> None:
    display = DisplayTree.of(tree_of_climbs([0] * 4_999), Folding())
    assert drawn(display) == ["n0", "n1", "n4999"]
    assert (display.folds[1], display.hidden[1]) == ("chain", 4_998)


def test_an_opened_chain_shows_its_steps() -> None:
    tree = tree_of_climbs([0] * 9)
    display = DisplayTree.of(tree, Folding(opened=frozenset({"n1"})))
    assert drawn(display) == [f"n{number}" for number in range(10)]


def test_a_closed_subtree_opens_again_for_the_selected_node() -> None:
    tree = tree_of_all_kinds()
    closed = Folding(closed=frozenset({"n1"}))
    assert drawn(DisplayTree.of(tree, closed)) == ["n0", "n1"]
    reopened = Folding(closed=frozenset({"n1"}), visible=frozenset({"n3"}))
    assert "n3" in drawn(DisplayTree.of(tree, reopened))


def test_siblings_are_in_the_order_of_their_numbers_not_of_the_log() -> None:
    tree = tree_of_climbs([0, *([1] * 10)])
    tree.root.children.reverse()
    assert drawn(DisplayTree.of(tree, Folding()))[1:] == [f"n{number}" for number in range(1, 12)]


def test_questions_labels_failures_and_forks_are_not_folded_into_chains() -> None:
    assert drawn(DisplayTree.of(tree_of_all_kinds(), Folding())) == [
        f"n{n}" for n in (0, 1, 2, 5, 3, 4)
    ]
