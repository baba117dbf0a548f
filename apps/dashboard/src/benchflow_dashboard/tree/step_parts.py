"""The parts of a step, in the order in which they happened."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from benchflow_contracts import Step, ToolCall

from .query import PartKind

SHORT_TEXT: Final = 8_000
"""The characters of a text that are shown at first."""
LONG_TEXT: Final = 1_000_000
"""The characters of a text that are shown at most."""


@dataclass(frozen=True, slots=True)
class StepPart:
    """One text of a step."""

    kind: PartKind
    title: str
    text: str
    """The start of the text, if the text is long."""
    status: str = ""
    """For an output: the status that the agent reported."""
    left: int = 0
    """The number of characters after `text`."""


def step_parts(step: Step, *, is_full: bool = False) -> list[StepPart]:
    """Return the prompt, the answer, the reasoning, the actions, and the tools' in- and outputs.

    The last part is the whole step as JSON.
    """
    limit = LONG_TEXT if is_full else SHORT_TEXT
    return [_cut(part, limit) for part in _parts(step)]


def _parts(step: Step) -> Iterator[StepPart]:
    if step.prompt is not None:
        yield StepPart("prompt", "prompt", step.prompt)
    if step.answer is not None:
        yield StepPart("prompt", "answer of the user", _answer(step))
    if step.reasoning:
        yield StepPart("reasoning", "reasoning", step.reasoning)
    if step.message:
        yield StepPart("message", "message", step.message)
    results = {result.tool_call_id: result for result in step.observations}
    for call in step.tool_calls:
        yield StepPart("action", _tool(call), call.title)
        if call.raw_input is not None:
            yield StepPart("input", "tool in", _as_text(call.raw_input))
        result = results.pop(call.id, None)
        if result is not None:
            yield StepPart("output", "tool out", result.content, status=result.status)
    for result in results.values():
        # An agent may report a result without its call.
        yield StepPart("output", "tool out", result.content, status=result.status)
    yield StepPart("raw", "raw", _as_text(step.model_dump(mode="json")))


def _answer(step: Step) -> str:
    answer = step.answer
    assert answer is not None
    chosen = [option for options in answer.selected.values() for option in options]
    return ", ".join([*chosen, *answer.text.values()]) or answer.outcome


def _tool(call: ToolCall) -> str:
    return f"action: {call.name or call.kind}"


def _as_text(value: Any) -> str:  # noqa: ANN401 - any JSON
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)


def _cut(part: StepPart, limit: int) -> StepPart:
    left = len(part.text) - limit
    if left <= 0:
        return part
    return StepPart(part.kind, part.title, part.text[:limit], part.status, left)
