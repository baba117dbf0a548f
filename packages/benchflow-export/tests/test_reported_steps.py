"""Steps that an agent reports without a call of their own: parts of an answer, or other words."""

from dataclasses import replace

import pytest
from benchflow_contracts import FinishedRollout, ModelCall, RolloutNode, Sample
from benchflow_export import samples_of
from forked_calls import SYSTEM, USER, call, forked, recorded, step


def with_steps(message: str, *own_calls: str) -> FinishedRollout:
    """A step without a chat call between a call and the next one, and one at the end."""
    first, ending = [SYSTEM, USER], {"role": "assistant", "content": "bye"}
    after = [*first, {"role": "assistant", "content": "hello there"}]
    calls = [
        call("c1", first, "hello there", [1, 2, 3], [4, 5]),
        call("c2", [*after, USER], "left", [1, 2, 3, 4, 5, 6], [7]),
        call("c3", [*after, ending], "right", [1, 2, 3, 4, 5, 8], [9]),
        call("aux", first, "A title", [1, 2, 3], [10], purpose="aux"),
    ]
    rollout = forked(calls)
    fork = rollout.tree.index["n1"]
    between = RolloutNode(id="x1", parent=fork, step=step("x1", *own_calls, message=message))
    between.children, fork.children = fork.children, [between]
    for child in between.children:
        child.parent = between
    left = rollout.tree.index["n2"]
    last = RolloutNode(id="x2", parent=left, step=step("x2", message="left"))
    left.children, last.results, left.results = [last], left.results, {}
    index = {node.id: node for node in rollout.tree.root.subtree}
    tree = type(rollout.tree)(rollout_id="r", task_id="t", root=rollout.tree.root, index=index)
    return replace(rollout, tree=tree)


def tokens(sample: Sample) -> list[list[int]]:
    return [sequence.token_ids for sequence in sample.sequences()]


@pytest.mark.parametrize("own_calls", [(), ("aux",)])
@pytest.mark.parametrize("message", ["", "there", " hello\nthere "])
def test_a_part_of_a_recorded_answer_does_not_break_the_tokens(
    message: str, own_calls: tuple[str, ...]
) -> None:
    left, right = samples_of(with_steps(message, *own_calls))
    assert tokens(left) == [[1, 2, 3, 4, 5, 6, 7]]
    assert tokens(right) == [[1, 2, 3, 4, 5, 8, 9]]
    assert [span.call for span in left.spans if span.kind == "sampled"] == ["c1", "c2"]
    for sample in (left, right):
        assert (sample.breaks, sample.missing_logprobs) == (0, 0)


def test_words_that_no_recorded_call_answered_are_a_counted_break() -> None:
    left, right = samples_of(with_steps("other words"))
    assert tokens(left) == [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7]]
    assert [sum(s.loss_mask) for s in left.sequences()] == [2, 1]
    for sample in (left, right):
        assert (sample.breaks, sample.repeated_tokens, sample.missing_logprobs) == (1, 5, 1)


def test_a_step_whose_own_call_is_not_readable_is_a_counted_break() -> None:
    lost: dict[str, object] = {"request": {}, "response": None}
    rollout = with_steps("", "c9")
    calls: dict[str, ModelCall] = {**rollout.calls}
    calls["c9"] = recorded()[0].model_copy(update={"id": "c9", **lost})
    left, _ = samples_of(replace(rollout, calls=calls))
    assert tokens(left) == [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7]]
    assert left.breaks == 1
