"""Conversations and model calls in Inspect's form."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from benchflow_contracts import ModelCall, Step, Usage
from benchflow_export import steps_to_messages

from .values import Json, id_of, json_of, text_of

_STOPS = {
    "stop": "stop",
    "length": "max_tokens",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
    "end_turn": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "max_tokens",
    "stop_sequence": "stop",
    "refusal": "content_filter",
}


def conversation(steps: Iterable[Step], instruction: str, scope: str) -> list[Json]:
    """Return the messages of a path. Equal prefixes in one `scope` have equal ids."""
    messages = steps_to_messages(steps, instruction=instruction)
    names = _tool_names(messages)
    result: list[Json] = []
    identity = scope
    for message in messages:
        converted = message_of(message, names)
        identity = id_of(identity, json.dumps(converted, sort_keys=True))
        result.append({"id": identity, **converted})
    return result


def _tool_names(messages: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    return {call["id"]: call["function"]["name"] for call in calls}


def message_of(message: Mapping[str, Any], tool_names: Mapping[str, str]) -> Json:
    """Return a chat message in Inspect's form."""
    role = message["role"]
    content: Any = text_of(str(message.get("content") or ""))
    if role == "tool":
        call = str(message.get("tool_call_id"))
        name = tool_names.get(call, "tool")
        call, name = text_of(call), text_of(name)
        return {"role": "tool", "content": content, "tool_call_id": call, "function": name}
    if role == "user":
        return {"role": "user", "content": content, "source": "input"}
    reasoning = message.get("reasoning_content")
    if reasoning:
        parts: list[Json] = [{"type": "reasoning", "reasoning": text_of(str(reasoning))}]
        content = [*parts, {"type": "text", "text": content}] if content else parts
    answer: Json = {"role": "assistant", "content": content, "source": "generate"}
    calls = [_tool_call(each) for each in message.get("tool_calls") or ()]
    return {**answer, "tool_calls": calls} if calls else answer


def _tool_call(call: Mapping[str, Any]) -> Json:
    function = call["function"]
    return {
        "id": text_of(str(call["id"])),
        "function": text_of(str(function["name"])),
        "arguments": json_of(json.loads(function["arguments"])),
        "type": "function",
    }


def usage_of(usage: Usage, cost_usd: float | None = None) -> Json:
    """Return the tokens of a call. Inspect counts cached tokens apart from the input."""
    result: Json = {
        "input_tokens": max(0, usage.input_tokens - usage.cached_tokens),
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
    if usage.cached_tokens:
        result["input_tokens_cache_read"] = usage.cached_tokens
    return result if cost_usd is None else {**result, "total_cost": cost_usd}


def add_usage(totals: dict[str, Json], model: str, usage: Mapping[str, float]) -> None:
    """Add the tokens of a call to the totals of its model."""
    total = totals.setdefault(model, {})
    for key, value in usage.items():
        total[key] = total.get(key, 0) + value


def stop_reason(call: ModelCall) -> str:
    """Return why the model stopped, in Inspect's words."""
    response = call.response or {}
    reason: object = response.get("stop_reason")
    choices: object = response.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
        reason = cast("Mapping[str, object]", choices[0]).get("finish_reason")
    return _STOPS.get(str(reason), "unknown")


def output_of(answer: Mapping[str, Any], model: str, stop: str) -> Json:
    """Return the output of a model whose answer is a message in Inspect's form."""
    content: Any = answer["content"]
    if not isinstance(content, str):
        parts = cast("list[Json]", content)
        content = "".join(part["text"] for part in parts if part["type"] == "text")
    choice = {"message": {**answer, "model": model}, "stop_reason": stop}
    return {"model": model, "choices": [choice], "completion": content}
