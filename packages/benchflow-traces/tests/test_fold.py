"""Late, repeated, unordered and orphaned spans converge to one trajectory."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from benchflow_traces import LogRecord, ObservedRollout, Span, SpanEvent, observed_rollouts
from hypothesis import given, settings
from hypothesis import strategies as st

TRACE = "a" * 32


def _span(number: int, parent: int | None, operation: str, **attributes: Any) -> Span:
    return Span(
        trace_id=TRACE,
        span_id=f"{number:016x}",
        parent_id=None if parent is None else f"{parent:016x}",
        name=operation,
        start_ns=number * 1_000_000_000,
        end_ns=(number + 1) * 1_000_000_000,
        attributes={"gen_ai.operation.name": operation}
        | {name.replace("__", "."): value for name, value in attributes.items()},
        resource={"service.name": "shop", "service.version": "2"},
    )


def _parts(role: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "parts": list(parts)}


def _conversation() -> list[Span]:
    """An agent that calls a tool, a subagent with a call of its own, and an answer."""
    user = _parts("user", {"type": "text", "content": "book a room"})
    call = _parts(
        "assistant",
        {"type": "reasoning", "content": "look first"},
        {"type": "tool_call", "id": "c1", "name": "search", "arguments": '{"q": "room"}'},
    )
    done = _parts("assistant", {"type": "text", "content": "booked"})
    return [
        _span(1, None, "invoke_agent", gen_ai__agent__name="planner"),
        _span(
            2,
            1,
            "chat",
            gen_ai__request__model="m",
            gen_ai__input__messages=json.dumps([user]),
            gen_ai__output__messages=json.dumps([call]),
            gen_ai__usage__input_tokens=10,
            gen_ai__usage__output_tokens=3,
        ),
        _span(
            3,
            1,
            "execute_tool",
            gen_ai__tool__name="search",
            gen_ai__tool__call__id="c1",
            gen_ai__tool__call__result="room 4",
        ),
        _span(4, 1, "invoke_agent", gen_ai__agent__name="booker"),
        _span(5, 4, "chat", gen_ai__request__model="m"),
        _span(
            6,
            1,
            "chat",
            gen_ai__request__model="m",
            gen_ai__output__messages=json.dumps([done]),
            gen_ai__response__finish_reasons=["stop"],
            gen_ai__evaluation__name="polite",
            gen_ai__evaluation__score__value=0.5,
        ),
        dataclasses.replace(_span(7, 1, "x"), attributes={"db.system": "sqlite"}, name="SELECT"),
    ]


def _record(rollout: ObservedRollout) -> object:
    plain = {
        field.name: getattr(rollout, field.name)
        for field in dataclasses.fields(rollout)
        if field.name != "tree"
    }
    nodes = [(n.id, n.step, n.error) for n in rollout.tree.index.values()]
    return plain, nodes, rollout.tree.status


@given(st.permutations(_conversation()), st.lists(st.integers(0, 6), max_size=5))
@settings(deadline=None)
def test_every_order_with_repeats_folds_to_the_same_rollout(
    spans: list[Span], again: list[int]
) -> None:
    (expected,) = observed_rollouts(_conversation())

    (rollout,) = observed_rollouts([*spans, *(spans[index] for index in again)])

    assert _record(rollout) == _record(expected)


def test_each_model_call_is_a_step_of_its_agent() -> None:
    (rollout,) = observed_rollouts(_conversation())

    assert [step.role for step in rollout.steps] == ["planner", "booker", "planner"]
    assert rollout.steps[0].reasoning == "look first"
    assert rollout.steps[0].tool_calls[0].raw_input == {"q": "room"}
    assert rollout.steps[0].observations[0].content == "room 4"
    assert rollout.steps[1].usage is None, "unknown tokens are unknown, not 0"
    assert rollout.unknown_spans == 1
    (score,) = rollout.evaluations
    assert (score.source, score.value, score.step_id) == ("polite", 0.5, f"{6:016x}")


@given(st.integers(0, 6))
def test_a_rollout_without_one_of_its_spans_still_folds(missing: int) -> None:
    spans = _conversation()
    del spans[missing]

    (rollout,) = observed_rollouts(spans)

    assert rollout.complete == (missing != 0)
    assert rollout.spans == 6


def test_a_conversation_of_two_traces_is_one_rollout_with_two_turns() -> None:
    def turn(trace: str, second: int, text: str) -> Span:
        asked = json.dumps([_parts("user", {"type": "text", "content": text})])
        span = _span(second, None, "chat", gen_ai__input__messages=asked)
        named = {**span.attributes, "gen_ai.conversation.id": "talk-1"}
        return dataclasses.replace(span, trace_id=trace * 32, attributes=named)

    (rollout,) = observed_rollouts([turn("b", 2, "and now?"), turn("a", 1, "hello")])

    assert rollout.id == "talk-1"
    assert [step.prompt for step in rollout.steps] == ["hello", "and now?"]


def test_two_libraries_that_report_one_call_count_once() -> None:
    outer = _span(1, None, "chat", gen_ai__usage__input_tokens=5, gen_ai__usage__output_tokens=1)
    inner = _span(2, 1, "chat", gen_ai__usage__input_tokens=5, gen_ai__usage__output_tokens=1)

    (rollout,) = observed_rollouts([inner, outer])

    assert len(rollout.steps) == 1


def test_the_time_of_a_fold_grows_with_the_number_of_spans_alone() -> None:
    # A chain of 10,000 parents at one time: all parents of each would take a minute.
    chain = [
        Span(TRACE, f"{n:016x}", f"{n - 1:016x}" if n > 1 else None, "x", 1, 2)
        for n in range(1, 10_001)
    ]
    tools = [_span(n, 1, "execute_tool", gen_ai__tool__name="x") for n in range(40_000, 43_000)]

    (rollout,) = observed_rollouts([*chain, *tools])

    assert rollout.spans == 13_000
    assert len(rollout.steps) == 3_000


def test_a_cycle_of_parents_ends() -> None:
    (rollout,) = observed_rollouts([_span(1, 2, "chat"), _span(2, 1, "chat")])

    assert not rollout.complete


@pytest.mark.parametrize("child_start", [0, 9])
def test_a_span_that_is_its_own_parent_is_a_step(child_start: int) -> None:
    outer = _span(1, 1, "chat", gen_ai__usage__input_tokens=5, gen_ai__usage__output_tokens=1)
    inner = dataclasses.replace(_span(2, 1, "chat"), start_ns=child_start)

    (rollout,) = observed_rollouts([inner, outer])

    assert [step.id for step in rollout.steps] == [outer.span_id]


def test_content_in_a_log_record_belongs_to_its_span() -> None:
    span = _span(1, None, "chat")
    record = LogRecord(
        event="gen_ai.client.inference.operation.details",
        time_ns=1,
        attributes={
            "gen_ai.output.messages": [_parts("assistant", {"type": "text", "content": "hi"})]
        },
        trace_id=TRACE,
        span_id=span.span_id,
    )

    (rollout,) = observed_rollouts([span], [record])

    assert rollout.steps[0].message == "hi"


def test_numbered_prompts_of_older_programs_are_read() -> None:
    span = Span(
        trace_id=TRACE,
        span_id="1" * 16,
        parent_id=None,
        name="openai.chat",
        start_ns=1,
        end_ns=2,
        attributes={
            "gen_ai.system": "OpenAI",
            "gen_ai.request.model": "m",
            "gen_ai.prompt.0.role": "user",
            "gen_ai.prompt.0.content": "hello",
            "gen_ai.completion.0.role": "assistant",
            "gen_ai.completion.0.finish_reason": "tool_calls",
            "gen_ai.completion.0.tool_calls.0.id": "c1",
            "gen_ai.completion.0.tool_calls.0.name": "search",
            "gen_ai.completion.0.tool_calls.0.arguments": '{"q": 1}',
            "gen_ai.usage.prompt_tokens": 4,
            "gen_ai.usage.completion_tokens": 2,
        },
    )

    (rollout,) = observed_rollouts([span])

    (step,) = rollout.steps
    assert step.prompt == "hello"
    assert [(c.id, c.name, c.raw_input) for c in step.tool_calls] == [("c1", "search", {"q": 1})]
    assert step.usage is not None
    assert step.usage.input_tokens == 4


def test_messages_as_span_events_are_read() -> None:
    events = (
        SpanEvent("gen_ai.user.message", 1, {"content": "hello"}),
        SpanEvent("gen_ai.choice", 2, {"message": '{"content": "hi"}', "finish_reason": "stop"}),
    )
    span = dataclasses.replace(_span(1, None, "chat"), events=events)

    (rollout,) = observed_rollouts([span])

    assert (rollout.steps[0].prompt, rollout.steps[0].message) == ("hello", "hi")


def test_a_failed_model_call_fails_the_rollout_only_if_it_is_the_last() -> None:
    failed = dataclasses.replace(
        _span(1, None, "chat"),
        failed=True,
        events=(SpanEvent("exception", 1, {"exception.type": "x.Busy"}),),
    )

    (ended,) = observed_rollouts([failed])
    (retried,) = observed_rollouts([failed, _span(2, None, "chat")])

    error = ended.tree.leaves[0].error
    assert error is not None
    assert (ended.tree.status, error.type) == ("failed", "Busy")
    assert retried.tree.status == "completed"
