"""A tree as Verifiers v1 traces: every message once, tokens exactly as the model saw them."""

import math
from typing import Any

import pytest
from benchflow_contracts import FinishedRollout
from benchflow_export import Shape, episode, samples_of
from forked_calls import SYSTEM, USER, call, forked, recorded, said

STD = math.sqrt(0.5) + 1e-6
"""Of the returns 1 and 0."""


def made(rollout: FinishedRollout, shape: Shape = "leaves", **more: Any) -> dict[str, Any]:
    record = episode(samples_of(rollout), rollout.calls, shape, **more)
    assert record is not None
    return record


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
    record = made(forked(recorded()))
    left, right = record["traces"]
    assert tokens(left, len(left["nodes"]) - 1) == (
        [1, 2, 3, 4, 5, 6, 7],
        [False, False, False, True, True, False, True],
    )
    assert tokens(right, len(right["nodes"]) - 1)[0] == [1, 2, 3, 4, 5, 8, 9]
    assert [trace["rewards"]["reward"]["score"] for trace in record["traces"]] == [1.0, 0.0]
    assert left["nodes"][-1]["advantages"] == [pytest.approx(0.5 / STD)]
    assert left["agent"]["trainable"]
    assert left["info"]["benchflow"]["branch"] == ["a"]


def test_the_graph_has_every_message_once_and_the_roots_value():
    [trace] = made(forked(recorded()), "graph")["traces"]
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
    left = made(forked(calls))["traces"][0]
    assert tokens(left, len(left["nodes"]) - 1)[0] == [1, 99, 3, 4, 5, 6, 7]
    info = left["info"]["benchflow"]
    assert (info["breaks"], info["repeated_tokens"]) == (1, 5)


@pytest.mark.parametrize("logprobs", [None, [-0.1]])
def test_tokens_are_not_trained_on_unless_each_has_a_log_probability(logprobs: list[float] | None):
    calls = recorded()
    calls[0] = call("c1", [SYSTEM, USER], "hello", [1, 2, 3], [4, 5], logprobs=logprobs)
    left = made(forked(calls))["traces"][0]
    assert tokens(left, len(left["nodes"]) - 1)[1] == [False] * 6 + [True]


def test_steps_without_recorded_calls_have_messages_but_no_tokens_to_train_on():
    record = made(forked([]))
    for trace in record["traces"]:
        assert not trace["agent"]["trainable"]
        assert all(not node["token_ids"] for node in trace["nodes"])
    assert [node["message"]["content"] for node in record["traces"][1]["nodes"]] == [
        "Do it.",
        "hello",
        "right",
    ]


def test_a_message_of_the_graph_has_the_process_credit_of_its_branch():
    [trace] = made(forked(recorded()), "graph")["traces"]
    advantages = [node.get("advantages") for node in trace["nodes"]]
    # Above the fork no branch is better than another.
    assert advantages == [None, None, None, None, [0.5], None, [-0.5]]
    [intra] = made(forked(recorded()), "graph", estimator="intra")["traces"]
    assert intra["nodes"][4]["advantages"] == [pytest.approx(0.5 / STD)]
    assert intra["nodes"][2]["advantages"] == [pytest.approx(0), pytest.approx(0)]
    [none] = made(forked(recorded()), "graph", estimator="none")["traces"]
    assert not any("advantages" in node for node in none["nodes"])
    assert none["info"]["benchflow"]["advantage"] == "none"


def test_a_trace_names_the_weights_that_sampled_each_message():
    calls = [
        each.model_copy(update={"policy_version": version})
        for each, version in zip(recorded(), ("v7", "v8", "v7"), strict=True)
    ]
    record = made(forked(calls))
    left = record["traces"][0]["info"]["benchflow"]
    assert left["policy_versions"] == ["v7", "v8"]
    assert left["policy_version_range"] == (7, 8)
    assert left["node_policy_versions"] == [None, None, "v7", None, "v8"]
    assert record["group"]["id"] == "t@d#-/v7"


def test_a_trace_says_that_a_limit_ended_it():
    calls = recorded()
    calls[1] = call("c2", calls[1].request["messages"], "left", [1, 2, 3, 4, 5, 6], [7])
    choice = {"message": said("left"), "finish_reason": "length"}
    calls[1] = calls[1].model_copy(update={"response": {"choices": [choice]}})
    left, right = made(forked(calls))["traces"]
    assert left["calls"][-1]["finish_reason"] == "length"
    assert left["stop_condition"] == "max_output_tokens"
    assert right["stop_condition"] is None


def test_a_tree_without_a_score_does_not_give_an_episode():
    source = forked(recorded())
    for leaf in source.tree.leaves:
        leaf.results.clear()
    assert episode(samples_of(source), source.calls) is None
