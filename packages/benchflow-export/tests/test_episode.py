"""A tree as Verifiers v1 traces: every message once, tokens exactly as the model saw them."""

from typing import Any

import pytest
from benchflow_contracts import (
    Credit,
    FinishedRollout,
    ModelCall,
    RolloutNode,
    RolloutTree,
    Step,
    Usage,
    VerifyResult,
)
from benchflow_export import episode

SYSTEM = {"role": "system", "content": "You work."}
USER = {"role": "user", "content": "Do it."}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "refusal": None}


def call(ident: str, messages: list[Any], reply: str, prompt: list[int], tokens: list[int], **more):
    fields = {
        "id": ident,
        "node": "n",
        "api": "openai-chat",
        "request": {"messages": messages},
        "response": {"choices": [{"message": said(reply)}]},
        "status": 200,
        "prompt_token_ids": prompt,
        "completion_token_ids": tokens,
        "logprobs": [-0.5] * len(tokens),
        "usage": Usage(input_tokens=len(prompt), output_tokens=len(tokens)),
        "started_at": 1,
        "finished_at": 2,
    }
    return ModelCall(**{**fields, **more})


def step(ident: str, *calls: str, message: str = "") -> Step:
    return Step(id=ident, model_calls=calls, message=message, started_at=0, finished_at=1)


def forked(calls: list[ModelCall]) -> FinishedRollout:
    """A first step, then two children, the second one without a score."""
    root = RolloutNode(id="n0")
    first = RolloutNode(id="n1", parent=root, step=step("s1", "c1", message="hello"))
    left = RolloutNode(id="n2", parent=first, step=step("s2", "c2", message="left"), label="a")
    right = RolloutNode(id="n3", parent=first, step=step("s3", "c3", message="right"), label="b")
    lost = RolloutNode(id="n4", parent=first, label="c")
    root.children, first.children = [first], [left, right, lost]
    left.results["reward"] = VerifyResult(reward=1.0)
    right.results["reward"] = VerifyResult(reward=0.0)
    left.credit, right.credit = Credit(intra=0.7, step=0.5), Credit(intra=-0.7, step=-0.5)
    index = {node.id: node for node in root.subtree}
    tree = RolloutTree(rollout_id="r", task_id="t", root=root, index=index)
    return FinishedRollout(
        tree=tree,
        task_digest="d",
        instruction="Do it.",
        agent="policy",
        model="m",
        sandbox="local",
        finished_at=2,
        calls={call.id: call for call in calls},
    )


def recorded() -> list[ModelCall]:
    first = [SYSTEM, USER]
    after = [*first, {"role": "assistant", "content": "hello"}]
    a, b = {"role": "user", "content": "A"}, {"role": "user", "content": "B"}
    return [
        call("c1", first, "hello", [1, 2, 3], [4, 5]),
        call("c2", [*after, a], "left", [1, 2, 3, 4, 5, 6], [7]),
        call("c3", [*after, b], "right", [1, 2, 3, 4, 5, 8], [9]),
    ]


def tokens(trace: dict[str, Any], leaf: int) -> tuple[list[int], list[bool]]:
    """The sequence that ends in node `leaf`, as a trainer puts it together."""
    path, at = [], leaf
    while at is not None:
        path.append(trace["nodes"][at])
        at = path[-1]["parent"]
    path.reverse()
    return (
        [token for node in path for token in node["token_ids"]],
        [flag for node in path for flag in node["mask"]],
    )


def test_the_trace_of_a_leaf_has_exactly_the_tokens_of_its_path():
    made = episode(forked(recorded()))
    left, right = made["traces"]
    assert tokens(left, len(left["nodes"]) - 1) == (
        [1, 2, 3, 4, 5, 6, 7],
        [False, False, False, True, True, False, True],
    )
    assert tokens(right, len(right["nodes"]) - 1)[0] == [1, 2, 3, 4, 5, 8, 9]
    assert [trace["rewards"]["reward"]["score"] for trace in made["traces"]] == [1.0, 0.0]
    assert left["nodes"][-1]["advantages"] == [0.7]
    assert left["agent"]["trainable"]
    assert left["info"]["benchflow"]["branch"] == ["a"]


def test_the_graph_has_every_message_once_and_the_roots_value():
    made = episode(forked(recorded()), "graph")
    [trace] = made["traces"]
    texts = [node["message"]["content"] for node in trace["nodes"]]
    assert texts == ["You work.", "Do it.", "hello", "A", "left", "B", "right"]
    assert [node["parent"] for node in trace["nodes"]] == [None, 0, 1, 2, 3, 2, 5]
    assert trace["rewards"]["reward"]["score"] == 0.5
    assert trace["info"]["benchflow"]["leaves"] == {"n2": 1.0, "n3": 0.0}
    assert trace["nodes"][4]["advantages"] == [0.5]
    assert [call["node"] for call in trace["calls"]] == [2, 4, 6]


def test_a_retokenised_prompt_starts_a_new_path():
    calls = recorded()
    calls[1] = call("c2", calls[1].request["messages"], "left", [1, 99, 3, 4, 5, 6], [7])
    left = episode(forked(calls))["traces"][0]
    assert tokens(left, len(left["nodes"]) - 1)[0] == [1, 99, 3, 4, 5, 6, 7]
    assert left["info"]["benchflow"]["retokenised"] == 1


@pytest.mark.parametrize("logprobs", [None, [-0.1]])
def test_tokens_are_not_trained_on_unless_each_has_a_log_probability(logprobs: list[float] | None):
    calls = recorded()
    calls[0] = call("c1", [SYSTEM, USER], "hello", [1, 2, 3], [4, 5], logprobs=logprobs)
    left = episode(forked(calls))["traces"][0]
    assert tokens(left, len(left["nodes"]) - 1)[1] == [False] * 6 + [True]


def test_steps_without_recorded_calls_have_messages_but_no_tokens_to_train_on():
    made = episode(forked([]))
    for trace in made["traces"]:
        assert not trace["agent"]["trainable"]
        assert all(not node["token_ids"] for node in trace["nodes"])
    assert [node["message"]["content"] for node in made["traces"][1]["nodes"]] == [
        "Do it.",
        "hello",
        "right",
    ]


def test_a_tree_without_a_score_does_not_give_an_episode():
    source = forked(recorded())
    for leaf in source.tree.leaves:
        leaf.results.clear()
    assert episode(source) is None
