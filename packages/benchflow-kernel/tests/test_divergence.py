"""The first step at which two paths differ."""

import pytest
from benchflow_contracts import Answer, Observation, RolloutNode, Step, ToolCall
from benchflow_kernel import Divergence, first_divergence
from hypothesis import given
from hypothesis import strategies as st


def step(word: str, number: int = 0, **changes: object) -> Step:
    """A step whose id, times and reasoning depend on `number`, and whose action on `word`."""
    made = Step(
        id=f"s{number}",
        reasoning=f"thought {number}",
        tool_calls=(ToolCall(id=f"c{number}", title=word),),
        observations=(Observation(tool_call_id=f"c{number}", status="completed", content="ok"),),
        started_at=number,
        finished_at=number + 1,
    )
    return made.model_copy(update=changes)


def path(steps: list[Step], prefix: str = "n") -> RolloutNode:
    node = RolloutNode(id=f"{prefix}0")
    for number, each in enumerate(steps, 1):
        child = RolloutNode(id=f"{prefix}{number}", parent=node, step=each)
        node.children.append(child)
        node = child
    return node


words = st.lists(st.sampled_from("ab"), max_size=6)


@given(words, words)
def test_the_steps_before_are_equal_and_the_named_ones_differ(one: list[str], other: list[str]):
    a = path([step(word, 1) for word in one], "a")
    b = path([step(word, 2) for word in other], "b")
    found = first_divergence(a, b)
    if one == other:
        assert found is None
        return
    assert found is not None
    shared = found.shared_steps
    assert one[:shared] == other[:shared]
    assert one[shared : shared + 1] != other[shared : shared + 1]
    assert found.a == (f"a{shared + 1}" if len(one) > shared else None)
    assert found.b == (f"b{shared + 1}" if len(other) > shared else None)
    assert (found.kind == "end") == (None in {found.a, found.b})


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("prompt", {"prompt": "another"}),
        ("answer", {"answer": Answer(selected={"q": ("other",)})}),
        ("action", {"message": "another"}),
        ("action", {"tool_calls": ()}),
        ("result", {"observations": ()}),
    ],
)
def test_the_kind_says_what_differs(kind: str, changes: dict[str, object]):
    a = path([step("look"), step("act", answer=Answer(selected={"q": ("one",)}))], "a")
    b = path(
        [step("look"), step("act", **{"answer": Answer(selected={"p": ("one",)}), **changes})], "b"
    )
    assert first_divergence(a, b) == Divergence(kind=kind, shared_steps=1, a="a2", b="b2")


def test_ids_of_questions_times_and_reasoning_do_not_count():
    a = path([step("act", 1, answer=Answer(selected={"q": ("one",)}))])
    b = path([step("act", 2, answer=Answer(selected={"p": ("one",)}))])
    assert first_divergence(a, b) is None


def test_a_node_is_equal_to_itself_and_has_not_reached_its_child():
    leaf = path([step("look"), step("act")])
    assert leaf.parent is not None
    assert first_divergence(leaf, leaf) is None
    found = first_divergence(leaf.parent, leaf)
    assert found == Divergence(kind="end", shared_steps=1, a=None, b="n2")


def test_a_path_of_5000_steps_is_compared():
    a, b = (path([step(str(number)) for number in range(5_000)]) for _ in range(2))
    assert first_divergence(a, b) is None
