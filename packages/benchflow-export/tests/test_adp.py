"""A trajectory as an ADP row: actions, observations, and one observation for each tool call."""

import json
from typing import Any

import pytest
from benchflow_contracts import VerifyResult
from benchflow_export import trajectory_to_verifiers_record
from benchflow_export.adp import adp_row
from hypothesis import given
from hypothesis import strategies as st

INFO = {
    "rollout_id": "r",
    "leaf": "n2",
    "branch": [],
    "group": {},
    "answer": "user",
    "answer_weight": 1.0,
    "policy_versions": ["v1", "v2"],
    "advantage": None,
}


def row(messages: list[dict[str, Any]]) -> dict[str, Any]:
    record = trajectory_to_verifiers_record(
        task_id="t",
        messages=messages,
        verify_result=VerifyResult(reward=0.5),
        is_truncated=True,
        tool_calls="openai",
        info=INFO,
    )
    return adp_row(record)


def call(ident: str, arguments: str = "{}") -> dict[str, Any]:
    return {"id": ident, "type": "function", "function": {"name": "sh", "arguments": arguments}}


def says(*calls: dict[str, Any], text: str = "") -> dict[str, Any]:
    return {"role": "assistant", "content": text, **({"tool_calls": [*calls]} if calls else {})}


def result(ident: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": ident, "content": text}


def test_a_conversation_is_actions_and_observations_with_the_reward_on_the_last_action() -> None:
    made = row(
        [
            {"role": "user", "content": "Do it."},
            says(call("a", '{"command": "ls"}'), text="I look."),
            result("a", "fence"),
            says(text="Done."),
        ]
    )
    assert [(item["class_"], item.get("source")) for item in made["content"]] == [
        ("text_observation", "user"),
        ("api_action", None),
        ("text_observation", "environment"),
        ("message_action", None),
    ]
    _, action, seen, last = made["content"]
    assert (action["function"], action["kwargs"], action["description"]) == (
        "sh",
        {"command": "ls"},
        "I look.",
    )
    assert action["tool_call_id"] == seen["tool_call_id"]
    assert ("reward" in action, last["reward"]) == (False, 0.5)
    details = made["details"]
    assert (made["schema_version"], details["reward"], details["is_truncated"]) == (
        "1.3.0",
        0.5,
        True,
    )
    assert (details["policy_versions"], details["shared_prefix"]) == (["v1", "v2"], "per_leaf")


@pytest.mark.parametrize("arguments", ["[1]", '{"a": NaN}', "not JSON", '"text"', "[" * 100_000])
def test_arguments_that_are_no_plain_object_stay_text(arguments: str) -> None:
    made = row([says(call("a", arguments))])
    assert made["content"][0]["kwargs"] == {"arguments": arguments}


MESSAGES = st.lists(
    st.one_of(
        st.just({"role": "user", "content": "Go on."}),
        st.lists(st.sampled_from("abc").map(call), max_size=3).map(lambda calls: says(*calls)),
        st.sampled_from("abcd").map(lambda ident: result(ident, "seen")),
    )
)


@given(MESSAGES)
def test_each_tool_call_has_one_observation_after_it_whatever_the_agent_reports(
    messages: list[dict[str, Any]],
) -> None:
    """The rules of `Trajectory.validate_tool_call_links` in ADP's schema."""
    made = row(messages)
    called: list[str] = []
    answered: list[str] = []
    for item in made["content"]:
        ident = item.get("tool_call_id")
        if item["class_"] == "api_action":
            assert ident is not None
            assert ident not in called
            called.append(ident)
        elif item["class_"] == "message_action":
            assert ident is None
        elif ident is not None:
            assert ident in called
            answered.append(ident)
    assert sorted(answered) == called
    results = sum(message["role"] == "tool" for message in messages)
    observed = sum(item["class_"] == "text_observation" for item in made["content"])
    users = sum(message["role"] == "user" for message in messages)
    assert observed == users + results + made["details"]["unanswered_tool_calls"]
    json.dumps(made, allow_nan=False)
