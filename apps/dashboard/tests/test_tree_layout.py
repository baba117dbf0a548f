"""The layout of trees: nothing overlaps, order is kept, subtrees are packed, time is linear."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from benchflow_dashboard.tree.layout import tidy_rows
from hypothesis import given
from hypothesis import strategies as st

Children = list[list[int]]


def tree_of(climbs: list[int]) -> Children:
    """Return a tree in depth-first order: before each node, the path is climbed by so much."""
    children: Children = [[]]
    path = [0]
    for node, climb in enumerate(climbs, 1):
        del path[max(len(path) - climb, 1) :]
        children[path[-1]].append(node)
        children.append([])
        path.append(node)
    return children


trees = st.lists(st.integers(0, 6), max_size=80).map(tree_of)


def depths_of(children: Children) -> list[int]:
    depths = [0] * len(children)
    for node, below in enumerate(children):
        for child in below:
            depths[child] = depths[node] + 1
    return depths


def below(children: Children, top: int) -> list[int]:
    found = [top]
    for node in found:
        found += children[node]
    return found


@given(trees)
def test_no_two_nodes_share_a_place_and_columns_keep_the_depth_first_order(tree: Children) -> None:
    last: dict[int, int] = {}
    for depth, row in zip(depths_of(tree), tidy_rows(tree), strict=True):
        assert row > last.get(depth, -1)
        last[depth] = row


@given(trees)
def test_a_parent_is_in_the_middle_of_its_first_and_last_child(tree: Children) -> None:
    rows = tidy_rows(tree)
    assert len(rows) == len(tree)
    assert min(rows) == 0
    for node, children in enumerate(tree):
        if children:
            first, last = rows[children[0]], rows[children[-1]]
            assert rows[node] == (first + last) // 2


@given(trees)
def test_a_subtree_is_as_close_to_its_earlier_siblings_as_their_outlines_allow(
    tree: Children,
) -> None:
    rows, depths = tidy_rows(tree), depths_of(tree)
    for children in tree:
        for at, child in enumerate(children[1:], 1):
            # One row further up, a node would be on one of the earlier siblings' nodes, or above.
            lowest: dict[int, int] = {}
            for node in (n for earlier in children[:at] for n in below(tree, earlier)):
                lowest[depths[node]] = max(lowest.get(depths[node], -1), rows[node])
            gaps = [
                rows[node] - lowest[depths[node]]
                for node in below(tree, child)
                if depths[node] in lowest
            ]
            assert min(gaps) == 1


@given(trees)
def test_the_shape_of_a_subtree_does_not_depend_on_the_rest(tree: Children) -> None:
    rows = tidy_rows(tree)
    for top in tree[0]:
        nodes = sorted(below(tree, top))
        number = {node: at for at, node in enumerate(nodes)}
        alone = tidy_rows([[number[child] for child in tree[node]] for node in nodes])
        assert [rows[node] - rows[top] for node in nodes] == [row - alone[0] for row in alone]


def test_an_empty_tree_and_a_single_node_have_a_layout() -> None:
    assert tidy_rows([]) == []
    assert tidy_rows([[]]) == [0]


def test_a_path_of_5000_steps_is_one_row() -> None:
    assert set(tidy_rows(tree_of([0] * 4_999))) == {0}


def chain_comb(size: int) -> Children:
    """Long chains below each other: every outline is deep."""
    length = round(size**0.5)
    return tree_of(([0] * (length - 1) + [length]) * length)


def caterpillar(size: int) -> Children:
    """A path with a leaf at each node."""
    return tree_of([0, 1] * (size // 2))


def binary(size: int) -> Children:
    children: Children = []

    def add(depth: int) -> int:
        children.append([])
        node = len(children) - 1
        if depth:
            children[node] = [add(depth - 1), add(depth - 1)]
        return node

    add(size.bit_length() - 1)
    return children


def star(size: int) -> Children:
    return tree_of([1] * size)


def lines_run(tree: Children) -> int:
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        tidy_rows(tree)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("family", [chain_comb, caterpillar, binary, star])
def test_the_work_for_each_node_does_not_grow_with_the_tree(
    family: Callable[[int], Children],
) -> None:
    small, large = family(250), family(4_000)
    assert lines_run(large) / len(large) <= 1.2 * lines_run(small) / len(small)
