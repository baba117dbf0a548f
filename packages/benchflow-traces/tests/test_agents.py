"""Claude Code's and Codex' own names."""

from __future__ import annotations

from typing import Any

import pytest
from benchflow_traces import LogRecord, Span, observed_rollouts

TRACE = "c" * 32


def _claude(number: int, parent: int | None, name: str, **attributes: Any) -> Span:
    return Span(
        trace_id=TRACE,
        span_id=f"{number:016x}",
        parent_id=None if parent is None else f"{parent:016x}",
        name=f"claude_code.{name}",
        start_ns=number,
        end_ns=number + 1,
        attributes={"session.id": "s-1", **attributes},
    )


def test_cached_tokens_of_claude_code_are_part_of_the_input() -> None:
    (rollout,) = observed_rollouts(
        [
            _claude(1, None, "interaction", user_prompt="fix the test"),
            _claude(
                2,
                1,
                "llm_request",
                model="m",
                input_tokens=3,
                cache_read_tokens=100,
                cache_creation_tokens=20,
                output_tokens=9,
            ),
            _claude(3, 1, "tool", tool_name="Bash", tool_use_id="t1", success="false"),
            _claude(4, 3, "tool.blocked_on_user", tool_name="Bash", decision="accept"),
        ]
    )

    assert rollout.id == "s-1"
    (step,) = rollout.steps
    assert step.prompt == "fix the test"
    assert step.usage is not None
    assert (step.usage.input_tokens, step.usage.cached_tokens) == (123, 100)
    assert step.observations[0].status == "failed"
    assert rollout.questions == 1
    assert step.ask is not None


def _codex(time: int, event: str, **attributes: Any) -> LogRecord:
    return LogRecord(
        event=f"codex.{event}",
        time_ns=time,
        attributes={"conversation.id": "k-1", **attributes},
    )


def test_the_log_records_of_codex_are_a_rollout() -> None:
    completed = {
        "event.kind": "response.completed",
        "model": "m",
        "input_token_count": "12",
        "output_token_count": 3,
    }
    records = [
        _codex(1, "user_prompt", prompt="list the files"),
        _codex(2, "sse_event", **completed),
        _codex(
            3, "tool_result", tool_name="shell", call_id="c1", arguments='["ls"]', output="a.txt"
        ),
        _codex(4, "sse_event", **completed),
    ]

    (rollout,) = observed_rollouts([], reversed(records))

    assert rollout.id == "k-1"
    assert rollout.dialects == ("codex",)
    assert rollout.steps[0].prompt == "list the files"
    first, second = rollout.steps
    assert first.tool_calls[0].raw_input == ["ls"]
    assert first.observations[0].content == "a.txt"
    assert second.usage is not None


@pytest.mark.parametrize(("source", "questions"), [("User", 1), ("Config", 0), (None, 0)])
def test_a_permission_is_a_question_only_if_a_person_decided(
    source: str | None, questions: int
) -> None:
    decided = {} if source is None else {"source": source}
    records = [_codex(1, "tool_decision", tool_name="shell", decision="approved", **decided)]

    (rollout,) = observed_rollouts([], records)

    assert rollout.questions == questions


def test_a_tool_of_a_model_call_that_failed_or_said_all_is_a_step_of_its_own() -> None:
    failed = _claude(1, None, "llm_request", success="false", error="busy")
    tool = _claude(2, None, "tool", tool_name="Bash", tool_use_id="t1")

    (rollout,) = observed_rollouts([failed, tool])

    assert [len(step.tool_calls) for step in rollout.steps] == [0, 1]
