"""Requests that real coding agents sent, as `record_agents` in `tests/support` recorded them."""

from __future__ import annotations

import gzip
import random
from functools import cache
from pathlib import Path

import pytest
from benchflow_traces import (
    LogRecord,
    ObservedRollout,
    Span,
    decode_logs,
    decode_traces,
    observed_rollouts,
)

RECORDED = Path(__file__).with_name("recorded")
PROTOBUF = "application/x-protobuf"
PROMPT = "What does the file hello.txt say? Then run the command."
CLAUDE, SILENT = "claude-code-2.1.197", "claude-code-2.1.197-without-content"
CODEX = "codex-0.171.0"


@cache
def _recorded(agent: str) -> tuple[tuple[Span, ...], tuple[LogRecord, ...]]:
    spans: list[Span] = []
    logs: list[LogRecord] = []
    for path in sorted((RECORDED / agent).iterdir()):
        body = gzip.decompress(path.read_bytes())
        if "traces" in path.name:
            spans += decode_traces(body, PROTOBUF)
        else:
            logs += decode_logs(body, PROTOBUF)
    return tuple(spans), tuple(logs)


def _rollout(agent: str) -> ObservedRollout:
    """Return the only rollout of a recorded run."""
    (rollout,) = observed_rollouts(*_recorded(agent))
    return rollout


def _calls(rollout: ObservedRollout) -> list[tuple[str | None, object, str, str]]:
    """Return the name and input of each call, and the status and content of its result."""
    return [
        (call.name, call.raw_input, seen.status, seen.content)
        for step in rollout.steps
        for call, seen in zip(step.tool_calls, step.observations, strict=True)
    ]


def test_a_run_of_claude_code_has_its_texts_tools_and_results() -> None:
    rollout = _rollout(CLAUDE)

    assert (rollout.service, rollout.version) == ("claude-code", "2.1.197")
    assert (rollout.environment, rollout.complete) == ("recorded", True)
    assert [step.prompt for step in rollout.steps] == [PROMPT, None, None]
    assert [step.message for step in rollout.steps] == [
        "I look at the file.",
        "Now the command.",
        "The file says old. The command failed.",
    ]
    assert _calls(rollout) == [
        ("Bash", {"command": "cat hello.txt"}, "completed", "old"),
        ("Bash", {"command": "exit 3"}, "failed", "Error: Shell command failed"),
    ]
    assert [step.usage.input_tokens for step in rollout.steps if step.usage] == [11, 11, 11]
    assert rollout.questions == 0, "a mode decided on the permissions, not a person"
    assert rollout.unknown_spans == 0


def test_without_content_claude_code_still_has_tools_failures_and_tokens() -> None:
    rollout = _rollout(SILENT)

    assert [(step.prompt, step.message) for step in rollout.steps] == [(None, "")] * 3
    assert _calls(rollout) == [
        ("Bash", None, "completed", ""),
        ("Bash", None, "failed", "Error: ShellError"),
    ]
    assert all(step.usage for step in rollout.steps)


def test_log_records_of_claude_code_alone_give_the_same_calls_and_texts() -> None:
    spans, logs = _recorded(CLAUDE)
    (whole,) = observed_rollouts(spans, logs)

    (rollout,) = observed_rollouts((), logs)

    assert [step.message for step in rollout.steps] == [step.message for step in whole.steps]
    assert [call[:3] for call in _calls(rollout)] == [call[:3] for call in _calls(whole)]


def test_a_run_of_codex_is_one_rollout_though_it_has_hundreds_of_spans() -> None:
    spans, _ = _recorded(CODEX)
    assert len({span.trace_id for span in spans}) > 10

    rollout = _rollout(CODEX)

    assert (rollout.service, rollout.version) == ("codex_exec", "0.171.0")
    assert (rollout.environment, rollout.complete) == ("recorded", True)
    assert [step.prompt for step in rollout.steps] == [PROMPT, None, None]
    assert [step.usage.output_tokens for step in rollout.steps if step.usage] == [7, 7, 7]
    first, second = _calls(rollout)
    assert first[:3] == ("exec_command", {"cmd": "cat hello.txt"}, "completed")
    assert first[3].endswith("old\n")
    # Codex itself reports success for a command that exits with another code than 0.
    assert second[:3] == ("exec_command", {"cmd": "exit 3"}, "completed")
    assert "exited with code 3" in second[3]
    assert rollout.unknown_spans == 0


@pytest.mark.parametrize("agent", [CLAUDE, SILENT, CODEX])
def test_the_order_and_repeats_of_recorded_spans_change_nothing(agent: str) -> None:
    spans, logs = _recorded(agent)
    expected = _rollout(agent)
    for seed in range(5):
        dice = random.Random(seed)
        mixed = [*spans, *dice.sample(spans, 5)], [*logs, *dice.sample(logs, 5)]
        for items in mixed:
            dice.shuffle(items)

        (rollout,) = observed_rollouts(*mixed)

        assert rollout.steps == expected.steps
        assert rollout.spans == expected.spans
