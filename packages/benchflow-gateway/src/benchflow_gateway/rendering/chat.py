"""Chat requests in, chat completions out."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from benchflow_gateway.documents import Document, as_document, documents, text_of

from .engines import Sampled, Sampling

_NUMBERS: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)


class ChatRequestError(ValueError):
    """A chat request that the endpoint does not support. The message names the field."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """The part of a chat request that is rendered and sampled."""

    model: str
    messages: list[Document]
    tools: list[Document]
    sampling: Sampling
    is_stream: bool

    @classmethod
    def of(cls, body: Document) -> "ChatRequest":
        """Read the body of a request.

        Raises:
            ChatRequestError: A field is wrong, or is not supported.
        """
        messages = documents(body.get("messages"))
        if not messages or len(messages) != len(body["messages"]):
            raise ChatRequestError("messages: expected a list of messages")
        if body.get("n", 1) not in (1, None):
            raise ChatRequestError("n: only one choice is supported")
        for at, message in enumerate(messages):
            _check_message(at, message)
        tools = [_function(at, tool) for at, tool in enumerate(documents(body.get("tools")))]
        return cls(
            model=text_of(body.get("model")),
            messages=[_rendered(message) for message in messages],
            tools=tools,
            sampling=_sampling(body),
            is_stream=bool(body.get("stream")),
        )


def _check_message(at: int, message: Document) -> None:
    role = message.get("role")
    if role not in ("system", "developer", "user", "assistant", "tool"):
        raise ChatRequestError(f"messages[{at}].role: {str(role)!r:.40} is not supported")
    for part in documents(message.get("content")):
        if part.get("type") not in ("text", "refusal"):
            raise ChatRequestError(
                f"messages[{at}].content: a part of type {str(part.get('type'))!r:.40} is not text"
            )


def _rendered(message: Document) -> Document:
    """Return a message as renderers take it: text content, and arguments as objects."""
    content = message.get("content")
    if not isinstance(content, str):
        content = "".join(text_of(part.get("text")) for part in documents(content))
    role = "system" if message["role"] == "developer" else message["role"]
    rendered: Document = {"role": role, "content": content}
    for key in ("tool_call_id", "name", "reasoning_content"):
        if message.get(key):
            rendered[key] = message[key]
    calls = [_call(call) for call in documents(message.get("tool_calls"))]
    return {**rendered, "tool_calls": calls} if calls else rendered


def _call(call: Document) -> Document:
    function = as_document(call.get("function"))
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        # What is not JSON is rendered as the text that the model wrote.
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    named = {"name": text_of(function.get("name")), "arguments": arguments}
    return {"type": "function", "id": text_of(call.get("id")), "function": named}


def _function(at: int, tool: Document) -> Document:
    function = as_document(tool.get("function"))
    if tool.get("type") != "function" or not function.get("name"):
        raise ChatRequestError(f"tools[{at}]: expected a function with a name")
    return {"type": "function", "function": function}


def _sampling(body: Document) -> Sampling:
    values: dict[str, Any] = {}
    for name in _NUMBERS:
        value = body.get(name)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ChatRequestError(f"{name}: expected a number, not {str(value)!r:.40}")
            values[name] = value
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ChatRequestError(f"max_tokens: expected a positive number, not {str(limit)!r:.40}")
    if body.get("stop"):
        # The engine would cut the text inside of a token, and the tokens would not be those of the
        # message.
        raise ChatRequestError("stop: texts that end the answer are not supported")
    return Sampling(values, limit)


def key_of(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
    """Return a digest of what a conversation says. Agents may drop empty fields and reasoning."""
    said = [
        [
            message["role"],
            message.get("content") or "",
            [[c["id"], c["function"]["name"]] for c in message.get("tool_calls", [])],
            message.get("tool_call_id"),
        ]
        for message in messages
    ]
    text = json.dumps([said, tools], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def message_of(parsed: Any) -> Document:  # noqa: ANN401 - a ParsedResponse of `renderers`
    """Return the assistant's message in sampled tokens. Each tool call gets a new id.

    A tool call that cannot be parsed stays in the content, so that the agent sees its fault.
    """
    calls: list[Document] = []
    texts = [parsed.content or ""]
    for call in parsed.tool_calls:
        if str(call.status) == "ok" and call.name:
            arguments = call.arguments
            text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
            # A new id, so that two conversations with equal texts are not taken for one.
            identity = f"call_{uuid4().hex}"
            named = {"name": call.name, "arguments": text}
            calls.append({"id": identity, "type": "function", "function": named})
        else:
            texts.append(call.raw)
    content = "".join(texts)
    message: Document = {"role": "assistant", "content": content or (None if calls else "")}
    if parsed.reasoning_content:
        message["reasoning_content"] = parsed.reasoning_content
    return {**message, "tool_calls": calls} if calls else message


def completion_of(
    request: ChatRequest, prompt: Sequence[int], sampled: Sampled, message: Document
) -> Document:
    """Return the body of a chat completion with token ids, as vLLM's `return_token_ids`."""
    finish = sampled.finish_reason
    if finish == "stop" and message.get("tool_calls"):
        finish = "tool_calls"
    content: list[Document] = [
        {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []}
        for token, logprob in zip(sampled.token_ids, sampled.logprobs or (), strict=False)
    ]
    more: Document = {}
    if sampled.routed_experts is not None:
        more["routed_experts"] = sampled.routed_experts
    if sampled.sampling_mask:
        more["sampling_mask"] = list(sampled.sampling_mask)
    return {
        "id": f"chatcmpl-{uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": request.model,
        "prompt_token_ids": list(prompt),
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": finish,
                "token_ids": list(sampled.token_ids),
                "logprobs": {"content": content} if sampled.logprobs is not None else None,
                **more,
            }
        ],
        "usage": {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(sampled.token_ids),
            "total_tokens": len(prompt) + len(sampled.token_ids),
        },
    }
