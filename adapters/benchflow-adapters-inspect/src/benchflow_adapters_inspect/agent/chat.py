"""Chat Completions requests as calls of an Inspect model, and its outputs as responses."""

# mypy: disable-error-code="import-not-found"
# pyright: basic, reportMissingImports=false

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    ContentImage,
    ContentText,
    GenerateConfig,
    ModelOutput,
)
from inspect_ai.tool import ToolCall, ToolChoice, ToolFunction, ToolInfo, ToolParams

_FINISH = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
}
_SAMPLING = ("temperature", "top_p", "seed", "max_tokens", "frequency_penalty", "presence_penalty")


class ChatRequestError(ValueError):
    """A request of the agent cannot be sent to an Inspect model."""


def messages_of(request: Mapping[str, Any]) -> list[ChatMessage]:
    """Return the messages of a request.

    Raises:
        ChatRequestError: A message has an unknown role or part, or a wrong shape.
    """
    try:
        return [_message(each) for each in request["messages"]]
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError, ValueError) as error:
        raise ChatRequestError(f"a message cannot be read: {error!r}") from error


def _message(message: Mapping[str, Any]) -> ChatMessage:
    role, content = message["role"], _content(message.get("content"))
    if role in {"system", "developer"}:
        return ChatMessageSystem(content=content)
    if role == "user":
        return ChatMessageUser(content=content)
    if role == "tool":
        return ChatMessageTool(content=content, tool_call_id=message.get("tool_call_id"))
    if role == "assistant":
        calls = [_tool_call(each) for each in message.get("tool_calls") or ()]
        return ChatMessageAssistant(content=content, tool_calls=calls or None)
    raise ChatRequestError(f"the role {role!r} is unknown")


def _content(content: Any) -> str | list[Any]:  # noqa: ANN401 - JSON
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts: list[Any] = []
    for part in content:
        if part["type"] == "text":
            parts.append(ContentText(text=part["text"]))
        elif part["type"] == "image_url":
            parts.append(ContentImage(image=part["image_url"]["url"]))
        else:
            raise ChatRequestError(f"a part of the type {part['type']!r} cannot be sent")
    return parts


def _tool_call(call: Mapping[str, Any]) -> ToolCall:
    function = call["function"]
    arguments = json.loads(function.get("arguments") or "{}")
    if not isinstance(arguments, dict):
        raise ChatRequestError("the arguments of a tool call are not an object")
    return ToolCall(id=call["id"], function=function["name"], arguments=arguments)


def tools_of(request: Mapping[str, Any]) -> list[ToolInfo]:
    """Return the tools of a request, which the agent runs itself."""
    try:
        return [_tool(each["function"]) for each in request.get("tools") or ()]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ChatRequestError(f"a tool cannot be read: {error!r}") from error


def _tool(function: Mapping[str, Any]) -> ToolInfo:
    schema = {"type": "object", **(function.get("parameters") or {})}
    return ToolInfo(
        name=function["name"],
        description=function.get("description") or "",
        parameters=ToolParams.model_validate(schema),
    )


def tool_choice_of(request: Mapping[str, Any]) -> ToolChoice | None:
    """Return the choice of tools of a request."""
    choice = request.get("tool_choice")
    if isinstance(choice, Mapping):
        return ToolFunction(name=str((choice.get("function") or {}).get("name")))
    names: dict[Any, ToolChoice] = {"auto": "auto", "none": "none", "required": "any"}
    return names.get(choice)


def config_of(request: Mapping[str, Any]) -> GenerateConfig:
    """Return the sampling parameters that the agent set."""
    given = {name: request[name] for name in _SAMPLING if request.get(name) is not None}
    longest = request.get("max_completion_tokens")
    if longest is not None:
        given["max_tokens"] = longest
    stop = request.get("stop")
    if stop is not None:
        given["stop_seqs"] = [stop] if isinstance(stop, str) else stop
    return GenerateConfig.model_validate(given)


def completion_of(output: ModelOutput) -> dict[str, Any]:
    """Return the response of an output."""
    return {
        "id": f"chatcmpl-{uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": output.model,
        "choices": [
            {
                "index": index,
                "message": _assistant(choice.message),
                "finish_reason": _FINISH.get(choice.stop_reason, "stop"),
                "logprobs": None,
            }
            for index, choice in enumerate(output.choices)
        ],
        "usage": _usage(output),
    }


def _assistant(message: ChatMessageAssistant) -> dict[str, Any]:
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.function, "arguments": json.dumps(call.arguments)},
        }
        for call in message.tool_calls or ()
    ]
    answer: dict[str, Any] = {"role": "assistant", "content": message.text or None}
    return {**answer, "tool_calls": calls} if calls else answer


def _usage(output: ModelOutput) -> dict[str, Any]:
    usage = output.usage
    if usage is None:
        return {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    cached = usage.input_tokens_cache_read or 0
    # Inspect counts the tokens that a cache answered apart from the input; this wire includes them.
    prompt = usage.input_tokens + cached + (usage.input_tokens_cache_write or 0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": usage.output_tokens,
        "total_tokens": prompt + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def chunks_of(completion: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    """Return a response as the chunks of a stream: one with everything, one with the usage."""
    base = {**completion, "object": "chat.completion.chunk"}
    choices = []
    for choice in completion["choices"]:
        calls = choice["message"].get("tool_calls") or ()
        indexed = [{"index": index, **call} for index, call in enumerate(calls)]
        delta = {**choice["message"], **({"tool_calls": indexed} if indexed else {})}
        rest = {key: value for key, value in choice.items() if key != "message"}
        choices.append({**rest, "delta": delta})
    return [{**base, "choices": choices, "usage": None}, {**base, "choices": []}]
