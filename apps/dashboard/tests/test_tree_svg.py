"""The SVG of a tree: roles, names, glyphs and chunks, and no way out of it for an agent's text."""

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from benchflow_contracts import RolloutNode, RolloutTree
from benchflow_dashboard.tree.display import DisplayTree, Folding
from benchflow_dashboard.tree.facts import TreeFacts
from benchflow_dashboard.tree.measure import MODES, UNKNOWN, Mode, measure
from benchflow_dashboard.tree.overview import overview
from benchflow_dashboard.tree.svg import NUMBER_NODES, TEXT_NODES, Drawing, Links, Marks, draw
from hypothesis import given, settings
from hypothesis import strategies as st
from made_trees import plain_step, random_tree, tree_of_all_kinds, tree_of_climbs
from xss_payloads import PAYLOADS, MarkupReader, dangers, structure

NO_MARKS, UNFOLDED, PLAIN_LINKS = Marks(), Folding(chains=False), Links()


def drawing_of(
    tree: RolloutTree,
    mode: Mode = "value",
    marks: Marks = NO_MARKS,
    folding: Folding = UNFOLDED,
    links: Links = PLAIN_LINKS,
) -> Drawing:
    values = TreeFacts.of(tree).values
    return draw(DisplayTree.of(tree, folding), measure(tree, mode, values), marks, links)


def items(svg: str) -> dict[str, ET.Element]:
    """Return the tree items by node id, in the order of the document."""
    found = (each for each in ET.fromstring(svg).iter("a") if each.get("role") == "treeitem")
    return {str(each.get("id")).removeprefix("t-"): each for each in found}


def visible(item: ET.Element) -> str:
    return "".join(item.itertext())


@pytest.mark.parametrize("size", [TEXT_NODES - 1, TEXT_NODES, NUMBER_NODES])
@pytest.mark.parametrize("mode", MODES)
def test_every_accessible_name_begins_with_the_visible_text(size: int, mode: Mode) -> None:
    tree = random_tree(size)
    for name, item in items(drawing_of(tree, mode).svg.text).items():
        words = str(item.get("aria-label"))
        assert words.startswith(visible(item).strip())
        assert name in words


def test_levels_and_places_are_those_of_the_tree() -> None:
    tree = random_tree(200)
    found = items(drawing_of(tree).svg.text)
    assert len(found) == 200
    for name, item in found.items():
        node = tree.index[name]
        siblings = [node] if node.parent is None else node.parent.children
        assert item.get("aria-level") == str(len(node.path))
        assert item.get("aria-setsize") == str(len(siblings))
        assert item.get("aria-posinset") == str(siblings.index(node) + 1)
        assert item.get("aria-expanded") == ("true" if node.children else None)
        assert item.get("href") == f"?sel={name}#t-{name}"


def test_the_text_of_the_step_is_beside_a_node_of_a_small_tree_only() -> None:
    small = items(drawing_of(tree_of_climbs([0] * (TEXT_NODES - 2))).svg.text)
    assert visible(small["n7"]) == ".75 n7 run 7"
    assert visible(items(drawing_of(tree_of_climbs([0] * TEXT_NODES)).svg.text)["n7"]) == ".00"
    assert visible(items(drawing_of(tree_of_climbs([0] * NUMBER_NODES)).svg.text)["n7"]) == ""


@pytest.mark.parametrize("depth", [1, 3, 5, 20])
def test_columns_move_together_until_the_titles_would_be_too_short(depth: int) -> None:
    """A tree of five steps fits the pane of a window of 1280 pixels."""
    tree = tree_of_climbs([0] * depth)
    text = " ".join(["word"] * 30)
    for node in tree.nodes:
        if node.step is not None:
            node.step = node.step.model_copy(update={"message": text, "tool_calls": ()})
    drawing = drawing_of(tree)
    assert drawing.width <= max(720, 20 + 104 * max(len(node.path) for node in tree.nodes) + 172)
    for item in items(drawing.svg.text).values():
        lines = ["".join(line.itertext()) for line in item.iter("tspan")]
        assert len(lines) <= 2
        assert all(len(line) <= 28 for line in lines)


def test_each_kind_has_its_glyph_and_its_word() -> None:
    tree = tree_of_all_kinds()
    found = items(drawing_of(tree, marks=Marks(running=frozenset({"n5"}))).svg.text)
    kinds = {name: str(item.get("aria-label")).split(", ")[1] for name, item in found.items()}
    assert kinds == {
        "n0": "state",
        "n1": "question",
        "n2": "state",
        "n3": "lost child",
        "n4": "failed",
        "n5": "running",
    }
    shapes = {
        name: [child.tag for child in item if child.tag != "text"] for name, item in found.items()
    }
    assert shapes["n1"] == ["path"]
    assert shapes["n5"] == ["circle", "circle"]
    assert found["n3"][0].get("class") == "cross"
    assert visible(found["n1"]).startswith("R .50")


def test_an_unscored_node_is_hollow_and_says_so_and_is_not_0() -> None:
    tree = tree_of_climbs([0])
    tree.index["n1"].results.clear()
    leaf = items(drawing_of(tree).svg.text)["n1"]
    assert leaf[0].get("class") == "blank"
    assert visible(leaf) == f"{UNKNOWN} n1 run 1"
    assert "state, not scored" in str(leaf.get("aria-label"))


def test_unknown_tokens_are_not_0() -> None:
    shown = items(drawing_of(tree_of_climbs([0]), "cost").svg.text)["n1"]
    assert visible(shown).startswith(UNKNOWN)


def test_the_best_path_is_thick_and_the_edge_to_a_lost_child_is_a_ghost() -> None:
    tree = tree_of_all_kinds()
    best = frozenset({"n0", "n1", "n2", "n5"})
    drawing = drawing_of(tree, marks=Marks(best=best))
    paths = {p.get("class"): str(p.get("d")) for p in ET.fromstring(drawing.svg.text).iter("path")}
    assert paths["edge best"].count("M") == 3
    assert paths["edge ghost"].count("M") == 1
    assert paths["edge"].count("M") == 1


def test_the_selected_node_and_mark_a_are_said_without_colour() -> None:
    drawing = drawing_of(tree_of_climbs([0, 0]), marks=Marks(a="n2"))
    found = items(drawing.selecting("n1").text)
    assert [item.get("aria-selected") for item in found.values()] == [None, "true", None]
    assert visible(found["n2"]).startswith("A ")


def test_a_folded_chain_unfolds_by_its_link() -> None:
    links = Links(others="mode=cost", opened=("n40",))
    drawing = drawing_of(tree_of_climbs([0] * 9), folding=Folding(), links=links)
    chain = items(drawing.svg.text)["n1"]
    assert visible(chain) == "8"
    assert chain.get("aria-expanded") == "false"
    assert chain.get("href") == "?sel=n1&open=n40,n1&mode=cost#t-n1"


def boxes(svg: str) -> list[tuple[tuple[int, ...], ET.Element]]:
    groups = [each for each in ET.fromstring(svg) if each.get("data-box")]
    return [(tuple(map(int, str(g.get("data-box")).split())), g) for g in groups]


def origin(group: ET.Element) -> tuple[int, int]:
    """Return the point that the coordinates of a chunk begin at."""
    place = re.fullmatch(r"translate\((\d+) (\d+)\)", str(group.get("transform")))
    assert place is not None
    return int(place[1]), int(place[2])


def test_chunks_are_small_and_their_boxes_have_their_glyphs() -> None:
    drawing = drawing_of(random_tree(3_000))
    found = boxes(drawing.svg.text)
    assert len(found) > 5
    for (left, top, right, bottom), group in found:
        x, y = origin(group)
        assert right - left <= 1_600
        assert bottom - top <= 600
        for circle in group.iter("circle"):
            assert left <= x + int(str(circle.get("cx"))) <= right
            assert top <= y + int(str(circle.get("cy"))) <= bottom


def add_leaf(tree: RolloutTree, parent: str) -> None:
    above = tree.index[parent]
    leaf = RolloutNode(id=f"n{len(tree.index)}", parent=above, step=plain_step(len(tree.index)))
    above.children.append(leaf)
    tree.index[leaf.id] = leaf


def with_changes(before: str, changes: str) -> str:
    """Return what a page shows that had `before` and got `changes`."""
    whole = re.compile(r'(<g role="none" data-chunk=")([^"]+)(" )[^>]*(>.*?</g>)')
    contents = {digest: rest for _, digest, _, rest in whole.findall(before)}
    return re.sub(
        r'<g data-same="([^"]+)" ([^>]*)></g>',
        lambda m: f'<g role="none" data-chunk="{m[1]}" {m[2]}{contents[m[1]]}',
        changes,
    )


@given(size=st.integers(1, 300), places=st.lists(st.integers(0, 299), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_the_changes_of_a_drawing_make_the_next_one_of_the_one_before(
    size: int, places: list[int]
) -> None:
    tree = random_tree(size)
    before = drawing_of(tree)
    for place in places:
        add_leaf(tree, f"n{place % size}")
    after = drawing_of(tree)
    changes = after.changes(frozenset(chunk.digest for chunk in before.chunks))
    assert with_changes(before.svg.text, changes.text) == after.svg.text


def test_a_new_node_of_a_large_tree_changes_few_chunks() -> None:
    tree = random_tree(3_000)
    known = frozenset(chunk.digest for chunk in drawing_of(tree).chunks)
    changed: list[int] = []
    for place in range(100, 3_000, 290):
        add_leaf(tree, f"n{place}")
        chunks = drawing_of(tree).chunks
        changed.append(sum(chunk.digest not in known for chunk in chunks))
        known = frozenset(chunk.digest for chunk in chunks)
    assert len(known) > 40
    assert sum(changed) / len(changed) < 8


def test_no_long_edge_is_in_a_chunk_that_a_browser_hides() -> None:
    drawing = drawing_of(random_tree(3_000))
    for (left, top, right, bottom), group in boxes(drawing.svg.text):
        x, y = origin(group)
        for path in group.iter("path"):
            numbers = str(path.get("d")).replace("M", " ").replace("H", " ").replace("V", " ")
            start = list(map(int, numbers.split()))[:2]
            assert left <= x + start[0] <= right + 6
            assert top <= y + start[1] <= bottom
    assert drawing.svg.text.count("M") >= 2_999


def test_the_document_is_in_depth_first_order_also_across_chunks() -> None:
    tree = random_tree(3_000)
    levels = [
        int(str(item.get("aria-level"))) for item in items(drawing_of(tree).svg.text).values()
    ]
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert list(items(drawing_of(tree).svg.text)) == [f"n{number}" for number in range(3_000)]


def test_the_overview_of_a_tall_tree_leads_to_its_nodes() -> None:
    tree = random_tree(3_000)
    display = DisplayTree.of(tree, UNFOLDED)
    number = measure(tree, "value", TreeFacts.of(tree).values)
    drawing = draw(display, number, NO_MARKS, PLAIN_LINKS)
    made = overview(display, drawing, number)
    assert made is not None
    strip = MarkupReader(made.text)
    targets = [value for tag, name, value in strip.attributes if (tag, name) == ("a", "href")]
    assert 20 <= len(targets) <= 60
    assert {target.removeprefix("#t-") for target in targets} <= set(tree.index)
    assert ("a", "tabindex", "-1") in strip.attributes
    assert overview(display, drawing_of(tree_of_climbs([0])), number) is None


@pytest.mark.parametrize("payload", PAYLOADS)
def test_no_payload_changes_the_structure_of_the_drawing(payload: str) -> None:
    tree = tree_of_all_kinds(payload, name=lambda number: f"{payload}{number}")
    hostile = drawing_of(tree, marks=Marks(a=f"{payload}1")).selecting(f"{payload}2").text
    plain = drawing_of(tree_of_all_kinds(), marks=Marks(a="n1")).selecting("n2").text
    assert structure(hostile) == structure(plain)
    assert not dangers(hostile)
    assert "style=" not in hostile
    # Also as XML, and as bytes.
    ET.fromstring(hostile.encode())


@pytest.mark.parametrize("detail", ["folded", "numbers", "shapes"])
def test_no_name_of_a_node_leaves_its_attribute_in_any_detail(detail: str) -> None:
    size = {"folded": 30, "numbers": TEXT_NODES, "shapes": NUMBER_NODES}[detail]
    tree = tree_of_climbs([0] * size)
    for at, node in enumerate(tree.index.values()):
        node.id = f"{PAYLOADS[at % len(PAYLOADS)]}{at}"
    folding = Folding() if detail == "folded" else Folding(chains=False)
    svg = drawing_of(tree, folding=folding).svg.text
    assert not dangers(svg)
    ET.fromstring(svg.encode())
