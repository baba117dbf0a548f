"""Steps of an agent without a protocol, from its recorded model calls."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from benchflow_contracts import ModelCall, Observation, Step, ToolCall

from .limits import TITLE_CHARS, TOOL_CALLS, cap_text, cap_value

if TYPE_CHECKING:
    from benchflow_contracts.step import ToolStatus

Json = Mapping[str, Any]


@dataclass(slots=True)
class _Answer:
    """What the model wrote in one call."""

    texts: list[str] = field(default_factory=list[str])
    reasoning: list[str] = field(default_factory=list[str])
    tools: list[ToolCall] = field(default_factory=list[ToolCall])


def steps_of_calls(calls: Sequence[ModelCall], blank: Step) -> list[Step]:
    """Return one step for each answered call of the agent's work, in the order of the calls.

    If every call is `aux`, as for an agent that uses no tools, they are the work.

    A step has the model's text and tool calls. Its observations are the results that a later
    request reports to the model. `blank` has the fields that all steps share; its `finished_at`
    ends the last step. Requests and answers are untrusted JSON, and unknown parts are ignored.
    Gemini's calls give steps without text and tools.
    """
    answered = [call for call in calls if call.response is not None]
    answered = [call for call in answered if call.purpose == "main"] or answered
    results = [dict(_results(call.request)) for call in answered]
    steps: list[Step] = []
    for number, call in enumerate(answered):
        answer = _answer(call.response or {})
        last = number + 1 == len(answered)
        ended = blank.finished_at if last else answered[number + 1].started_at
        update = {
            "id": f"{blank.id}.{number + 1}",
            "reasoning": cap_text("\n".join(answer.reasoning)),
            "message": cap_text("\n".join(answer.texts)),
            "tool_calls": tuple(answer.tools[:TOOL_CALLS]),
            "observations": tuple(_observations(answer, results[number + 1 :])),
            "started_at": call.started_at,
            "finished_at": max(call.started_at, ended),
        }
        steps.append(blank.model_copy(update=update))
    return steps


def _observations(answer: _Answer, later: Sequence[Mapping[str, Observation]]) -> Iterator[Any]:
    for tool in answer.tools[:TOOL_CALLS]:
        found = next((results[tool.id] for results in later if tool.id in results), None)
        if found is not None:
            yield found


def _answer(body: Json) -> _Answer:
    """Read an answer of Chat Completions, Messages or Responses."""
    answer = _Answer()
    for choice in _objects(body.get("choices"))[:1]:
        message = _object(choice.get("message"))
        _read_text(answer.reasoning, message.get("reasoning_content") or message.get("reasoning"))
        _read_text(answer.texts, message.get("content"))
        for call in _objects(message.get("tool_calls")):
            function = _object(call.get("function"))
            _add_tool(answer, call.get("id"), function.get("name"), function.get("arguments"))
    for part in (*_objects(body.get("content")), *_objects(body.get("output"))):
        match part.get("type"):
            case "text":
                _read_text(answer.texts, part.get("text"))
            case "message":
                _read_text(answer.texts, part.get("content"))
            case "thinking":
                _read_text(answer.reasoning, part.get("thinking"))
            case "reasoning":
                _read_text(answer.reasoning, part.get("summary"))
            case "tool_use":
                _add_tool(answer, part.get("id"), part.get("name"), part.get("input"))
            case "function_call":
                _add_tool(answer, part.get("call_id"), part.get("name"), part.get("arguments"))
            case _:
                pass
    return answer


def _results(request: Json) -> Iterator[tuple[str, Observation]]:
    """Yield the results of tools that a request reports, by the id of the tool call."""
    for message in _objects(request.get("messages")):
        if message.get("role") == "tool":
            yield from _result(message.get("tool_call_id"), message.get("content"))
        for part in _objects(message.get("content")):
            if part.get("type") == "tool_result":
                failed = part.get("is_error") is True
                yield from _result(part.get("tool_use_id"), part.get("content"), failed=failed)
    for item in _objects(request.get("input")):
        if item.get("type") == "function_call_output":
            yield from _result(item.get("call_id"), item.get("output"))


def _result(
    name: object, content: object, *, failed: bool = False
) -> Iterator[tuple[str, Observation]]:
    if isinstance(name, str):
        texts: list[str] = []
        _read_text(texts, content)
        text = cap_text("\n".join(texts))
        status: ToolStatus = "failed" if failed else "completed"
        yield name, Observation(tool_call_id=name, status=status, content=text)


def _add_tool(answer: _Answer, name: object, tool: object, arguments: object) -> None:
    if not isinstance(name, str) or not isinstance(tool, str):
        return
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    title = cap_text(tool, TITLE_CHARS)
    raw = cap_value(arguments)
    answer.tools.append(ToolCall(id=name, title=title, name=title, raw_input=raw))


def _read_text(into: list[str], content: object) -> None:
    """Append the text of a string, or of the parts of a list."""
    if isinstance(content, str) and content:
        into.append(content)
    for part in _objects(content):
        text = part.get("text")
        if isinstance(text, str) and text:
            into.append(text)


def _object(value: object) -> Json:
    return cast("Json", value) if isinstance(value, Mapping) else {}


def _objects(value: object) -> list[Json]:
    if not isinstance(value, list | tuple):
        return []
    return [_object(item) for item in cast("Sequence[object]", value) if _object(item)]
