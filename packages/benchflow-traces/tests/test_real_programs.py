"""The same conversation by four libraries, as each of them exports it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from benchflow_traces import ObservedRollout, observed_rollouts
from chat_stub import ANSWER, QUESTION

if TYPE_CHECKING:
    from emitted_traces import Emitted

PROGRAMS = ("pydantic_ai_agent", "genai_openai", "traceloop_openai", "openinference_openai")


def _only(emitted: Emitted, program: str) -> ObservedRollout:
    (rollout,) = observed_rollouts(emitted.spans(program))
    return rollout


def _content(rollout: ObservedRollout) -> list[object]:
    """Return what a step says, without its ids, times and the name of the role."""
    return [
        (
            step.prompt,
            step.reasoning,
            step.message,
            [(call.id, call.name, call.raw_input) for call in step.tool_calls],
            [(seen.tool_call_id, seen.status, seen.content) for seen in step.observations],
            step.usage,
            step.stop_reason,
            step.meta,
        )
        for step in rollout.steps
    ]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_same_conversation_gives_the_same_steps_by_every_library(
    emitted: Emitted, program: str
) -> None:
    rollout = _only(emitted, program)

    assert _content(rollout) == _content(_only(emitted, "pydantic_ai_agent"))
    first, second, last = rollout.steps
    assert first.prompt == QUESTION
    assert [call.raw_input for call in (*first.tool_calls, *second.tool_calls)] == [
        {"city": "Paris"},
        {"city": "Atlantis"},
    ]
    assert [seen.content for seen in first.observations] == ["21 degrees"]
    assert (last.message, last.stop_reason) == (ANSWER, "end_turn")
    assert last.usage is not None
    assert (last.usage.input_tokens, last.usage.output_tokens, last.usage.cached_tokens) == (
        60,
        7,
        5,
    )


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_program_and_its_version_are_those_of_the_resource(
    emitted: Emitted, program: str
) -> None:
    rollout = _only(emitted, program)

    assert (rollout.service, rollout.version) == ("weather-agent", "1.8")
    assert rollout.models == ("stub-large",)
    assert rollout.complete
    assert rollout.tree.status == "completed"


def test_a_tool_that_raises_is_a_failed_observation(emitted: Emitted) -> None:
    rollout = _only(emitted, "pydantic_ai_raises")

    assert [seen.status for step in rollout.steps for seen in step.observations] == [
        "completed",
        "failed",
    ]
    assert rollout.steps[-1].observations[0].content == "ValueError: unknown city: Atlantis"
    assert rollout.tree.status == "failed"
    error = rollout.tree.leaves[0].error
    assert error is not None
    assert (error.boundary, error.type) == ("agent", "ValueError")
    assert error.message == "weather: unknown city: Atlantis"


def test_spans_of_agents_do_not_add_to_the_usage(emitted: Emitted) -> None:
    rollout = _only(emitted, "pydantic_ai_agent")

    assert sum(step.usage.input_tokens for step in rollout.steps if step.usage) == 150
