"""Writing a reply in each wire, as one JSON body or as server-sent events."""

# pyright: basic

import json
from collections.abc import Iterator
from typing import Any

from .exchange import ModelReply, ModelRequest
from .requests import JOIN, namespaces
from .tokens import completion_ids, prompt_ids

Event = tuple[str | None, dict[str, Any] | str]


def body(request: ModelRequest, reply: ModelReply, number: int) -> dict[str, Any]:
    """Return the whole reply as one object."""
    if request.wire == "chat":
        return _chat_body(request, reply, number)
    if request.wire == "responses":
        return _response(request, reply, number, "completed")
    if request.wire == "gemini":
        return _gemini_body(request, reply, number)
    return _message(request, reply, number)


def events(request: ModelRequest, reply: ModelReply, number: int) -> Iterator[bytes]:
    """Yield the reply as server-sent events."""
    makers = {
        "chat": _chat_events,
        "responses": _response_events,
        "messages": _message_events,
        "gemini": _gemini_events,
    }
    for name, data in makers[request.wire](request, reply, number):
        text = data if isinstance(data, str) else json.dumps(data)
        yield (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()


def _chat_message(reply: ModelReply, number: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tools:
        message["tool_calls"] = [
            {
                "id": f"call_{number}_{index}",
                "type": "function",
                "function": {"name": use.name, "arguments": json.dumps(use.arguments)},
            }
            for index, use in enumerate(reply.tools)
        ]
    return message


def _chat_usage(reply: ModelReply) -> dict[str, int]:
    total = reply.input_tokens + reply.output_tokens
    return {
        "prompt_tokens": reply.input_tokens,
        "completion_tokens": reply.output_tokens,
        "total_tokens": total,
    }


def _chat_body(request: ModelRequest, reply: ModelReply, number: int) -> dict[str, Any]:
    message = _chat_message(reply, number)
    choice: dict[str, Any] = {
        "index": 0,
        "message": message,
        "finish_reason": reply.finish or ("tool_calls" if reply.tools else "stop"),
        **_choice_tokens(request, message),
    }
    return {
        **_prompt_tokens(request),
        **_version(reply),
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": number,
        "model": request.model,
        "choices": [choice],
        "usage": _chat_usage(reply),
    }


def _version(reply: ModelReply) -> dict[str, str]:
    return {} if reply.policy_version is None else {"policy_version": reply.policy_version}


def _prompt_tokens(request: ModelRequest) -> dict[str, Any]:
    asked = request.raw.get("return_token_ids")
    return {"prompt_token_ids": prompt_ids(request.raw["messages"])} if asked else {}


def _choice_tokens(request: ModelRequest, message: dict[str, Any]) -> dict[str, Any]:
    ids = completion_ids(message)
    added: dict[str, Any] = {}
    if request.raw.get("return_token_ids"):
        added["token_ids"] = ids
    if request.raw.get("logprobs"):
        content = [{"token": chr(i), "logprob": -i / 256, "top_logprobs": []} for i in ids]
        added["logprobs"] = {"content": content}
    return added


def _chat_events(request: ModelRequest, reply: ModelReply, number: int) -> Iterator[Event]:
    base = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion.chunk",
        "created": number,
        "model": request.model,
    }
    delta = _chat_message(reply, number)
    added = _choice_tokens(request, delta)
    for index, call in enumerate(delta.get("tool_calls", [])):
        call["index"] = index
    finish = "tool_calls" if reply.tools else "stop"
    begun = {"index": 0, "delta": delta, "finish_reason": None, **added}
    yield None, {**base, **_prompt_tokens(request), "choices": [begun]}
    last = {"index": 0, "delta": {}, "finish_reason": finish}
    ended = {"usage": _chat_usage(reply), **_version(reply)}
    yield None, {**base, "choices": [last], **ended}
    yield None, "[DONE]"


def _called(request: ModelRequest, name: str) -> dict[str, str]:
    for space in namespaces(request.raw):
        if name.startswith(space + JOIN):
            return {"namespace": space, "name": name.removeprefix(space + JOIN)}
    return {"name": name}


def _output(request: ModelRequest, reply: ModelReply, number: int) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if reply.text:
        part = {"type": "output_text", "text": reply.text, "annotations": []}
        items.append(
            {
                "type": "message",
                "id": f"msg_{number}",
                "status": "completed",
                "role": "assistant",
                "content": [part],
            }
        )
    for index, use in enumerate(reply.tools):
        items.append(
            {
                "type": "function_call",
                "id": f"fc_{number}_{index}",
                "call_id": f"call_{number}_{index}",
                "status": "completed",
                **_called(request, use.name),
                "arguments": json.dumps(use.arguments),
            }
        )
    return items


def _response(request: ModelRequest, reply: ModelReply, number: int, status: str) -> dict[str, Any]:
    done = status == "completed"
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": number,
        "status": status,
        "model": request.model,
        "output": _output(request, reply, number) if done else [],
        "usage": {
            "input_tokens": reply.input_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": reply.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.input_tokens + reply.output_tokens,
        }
        if done
        else None,
    }


def _response_events(request: ModelRequest, reply: ModelReply, number: int) -> Iterator[Event]:
    started = _response(request, reply, number, "in_progress")
    yield "response.created", {"type": "response.created", "response": started}
    for index, item in enumerate(_output(request, reply, number)):
        at = {"output_index": index, "item": item}
        yield "response.output_item.added", {"type": "response.output_item.added", **at}
        yield "response.output_item.done", {"type": "response.output_item.done", **at}
    done = _response(request, reply, number, "completed")
    yield "response.completed", {"type": "response.completed", "response": done}


def _blocks(reply: ModelReply, number: int) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = [{"type": "text", "text": reply.text}] if reply.text else []
    return blocks + [
        {"type": "tool_use", "id": f"toolu_{number}_{i}", "name": u.name, "input": u.arguments}
        for i, u in enumerate(reply.tools)
    ]


def _message(request: ModelRequest, reply: ModelReply, number: int) -> dict[str, Any]:
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": _blocks(reply, number),
        "stop_reason": "tool_use" if reply.tools else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": reply.input_tokens, "output_tokens": reply.output_tokens},
    }


def _message_events(request: ModelRequest, reply: ModelReply, number: int) -> Iterator[Event]:
    whole = _message(request, reply, number)
    start = {**whole, "content": [], "stop_reason": None}
    yield "message_start", {"type": "message_start", "message": start}
    for index, block in enumerate(whole["content"]):
        if block["type"] == "text":
            empty = {"type": "text", "text": ""}
            delta = {"type": "text_delta", "text": block["text"]}
        else:
            empty = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        at = {"index": index}
        opened = {"type": "content_block_start", **at, "content_block": empty}
        yield "content_block_start", opened
        yield "content_block_delta", {"type": "content_block_delta", **at, "delta": delta}
        yield "content_block_stop", {"type": "content_block_stop", **at}
    ending = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    usage = {"output_tokens": reply.output_tokens}
    yield "message_delta", {"type": "message_delta", "delta": ending, "usage": usage}
    yield "message_stop", {"type": "message_stop"}


def _gemini_parts(reply: ModelReply, number: int) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    if reply.reasoning:
        parts.append({"text": reply.reasoning, "thought": True})
    if reply.text:
        parts.append({"text": reply.text})
    for index, use in enumerate(reply.tools):
        named = {"id": f"call_{number}_{index}", "name": use.name, "args": use.arguments}
        parts.append({"functionCall": named})
    return parts


def _gemini_chunk(
    request: ModelRequest, number: int, parts: list[dict[str, Any]], **ended: str
) -> dict[str, Any]:
    content = {"role": "model", "parts": parts}
    return {
        "candidates": [{"content": content, "index": 0, **ended}],
        "modelVersion": request.model,
        "responseId": f"gemini-{number}",
    }


def _gemini_usage(reply: ModelReply) -> dict[str, int]:
    total = reply.input_tokens + reply.output_tokens
    return {
        "promptTokenCount": reply.input_tokens,
        "candidatesTokenCount": reply.output_tokens,
        "totalTokenCount": total,
    }


def _gemini_body(request: ModelRequest, reply: ModelReply, number: int) -> dict[str, Any]:
    parts = _gemini_parts(reply, number)
    whole = _gemini_chunk(request, number, parts, finishReason=reply.finish or "STOP")
    return {**whole, "usageMetadata": _gemini_usage(reply)}


def _gemini_events(request: ModelRequest, reply: ModelReply, number: int) -> Iterator[Event]:
    for part in _gemini_parts(reply, number):
        yield None, _gemini_chunk(request, number, [part])
    last = _gemini_chunk(request, number, [], finishReason=reply.finish or "STOP")
    yield None, {**last, "usageMetadata": _gemini_usage(reply)}
