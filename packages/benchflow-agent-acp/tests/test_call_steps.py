"""Steps from recorded model calls."""

import json

import pytest
from benchflow_agent_acp.call_steps import steps_of_calls
from benchflow_contracts import ModelCall, Step
from hypothesis import given
from hypothesis import strategies as st

BLANK = Step(id="turn", started_at=0, finished_at=100)


def call(number, request, response, api="openai-chat", purpose="main"):
    return ModelCall(
        id=f"c{number}",
        node="n0",
        api=api,
        purpose=purpose,
        request=request,
        response=response,
        status=200,
        started_at=number * 10,
        finished_at=number * 10 + 5,
    )


CHAT = [
    call(
        1,
        {"messages": [{"role": "user", "content": "Go."}]},
        {
            "choices": [
                {
                    "message": {
                        "content": "I look.",
                        "reasoning_content": "Hm.",
                        "tool_calls": [
                            {"id": "t1", "function": {"name": "bash", "arguments": '{"c": 1}'}}
                        ],
                    }
                }
            ]
        },
    ),
    call(
        2,
        {"messages": [{"role": "tool", "tool_call_id": "t1", "content": "a file"}]},
        {"choices": [{"message": {"content": "Done."}}]},
    ),
]
MESSAGES = [
    call(
        1,
        {"messages": []},
        {
            "content": [
                {"type": "thinking", "thinking": "Hm."},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "bash", "input": {"c": 1}},
            ]
        },
        "anthropic-messages",
    ),
    call(
        2,
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "a file"}],
                }
            ]
        },
        {"content": [{"type": "text", "text": "Done."}]},
        "anthropic-messages",
    ),
]
RESPONSES = [
    call(
        1,
        {"input": "Go."},
        {
            "output": [
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
                {"type": "message", "content": [{"type": "output_text", "text": "I look."}]},
                {
                    "type": "function_call",
                    "call_id": "t1",
                    "name": "bash",
                    "arguments": '{"c": 1}',
                },
            ]
        },
        "openai-responses",
    ),
    call(
        2,
        {"input": [{"type": "function_call_output", "call_id": "t1", "output": "a file"}]},
        {"output": [{"type": "message", "content": [{"type": "output_text", "text": "Done."}]}]},
        "openai-responses",
    ),
]


@pytest.mark.parametrize("calls", [CHAT, MESSAGES, RESPONSES], ids=lambda calls: calls[0].api)
def test_each_wire_gives_the_same_steps(calls):
    first, last = steps_of_calls(calls, BLANK)
    assert (first.reasoning, first.message) == ("Hm.", "I look.")
    assert [(tool.name, tool.raw_input) for tool in first.tool_calls] == [("bash", {"c": 1})]
    assert [(seen.tool_call_id, seen.content) for seen in first.observations] == [("t1", "a file")]
    assert (last.message, last.tool_calls, last.observations) == ("Done.", (), ())
    # The tools ran until the next call began, and the last step until the program ended.
    assert (first.finished_at, last.finished_at) == (20, 100)


def test_calls_beside_the_work_are_no_steps_unless_they_are_the_only_ones():
    aside = call(3, {}, {"choices": [{"message": {"content": "A title"}}]}, purpose="aux")
    assert len(steps_of_calls([*CHAT, aside], BLANK)) == 2
    assert [step.message for step in steps_of_calls([aside], BLANK)] == ["A title"]


def test_a_failed_tool_is_a_failed_observation_and_an_open_one_has_none():
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "no", "is_error": True}
    request = {"messages": [{"role": "user", "content": [result]}]}
    second = MESSAGES[1].model_copy(update={"request": request})
    assert steps_of_calls([MESSAGES[0], second], BLANK)[0].observations[0].status == "failed"
    assert steps_of_calls(MESSAGES[:1], BLANK)[0].observations == ()


def test_arguments_that_are_no_json_stay_text_and_long_ones_are_cut():
    function = {"name": "bash", "arguments": "{" * 200_000}
    message = {"tool_calls": [{"id": "t", "function": function}]}
    [step] = steps_of_calls([call(1, {}, {"choices": [{"message": message}]})], BLANK)
    assert len(json.dumps(step.tool_calls[0].raw_input)) < 70_000


values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "messages",
                    "content",
                    "choices",
                    "message",
                    "tool_calls",
                    "function",
                    "id",
                    "name",
                    "arguments",
                    "type",
                    "text",
                    "output",
                    "input",
                    "role",
                    "tool_call_id",
                    "tool_use_id",
                    "call_id",
                    "summary",
                ]
            ),
            inner | st.sampled_from(["tool", "text", "tool_use", "function_call", "message"]),
            max_size=4,
        )
    ),
    max_leaves=25,
)
objects = st.dictionaries(st.sampled_from(["messages", "choices", "content", "output"]), values)


@given(st.lists(st.tuples(objects, objects), max_size=3))
def test_no_json_of_a_peer_raises(pairs):
    calls = [call(number, *pair) for number, pair in enumerate(pairs)]
    assert len(steps_of_calls(calls, BLANK)) == len(pairs)
