"""OpenAI Chat Completions, with the fields that vLLM adds.

https://platform.openai.com/docs/api-reference/chat; vLLM's `return_token_ids` puts
`prompt_token_ids` beside `choices` and `token_ids` into each of them.
"""

import json
from collections.abc import Iterator

from benchflow_contracts import ModelApi, Usage

from benchflow_gateway.documents import (
    Document,
    DocumentError,
    as_document,
    count_of,
    documents,
    items_of,
    read_document,
    text_of,
)
from benchflow_gateway.errors import RefusalKind
from benchflow_gateway.sse import Event

_DONE = "[DONE]"
# Fields that a delta extends. Every other field of a delta replaces the value.
_GROWING = {"content", "reasoning_content", "reasoning", "refusal", "arguments"}
_LISTS = ("token_ids", "sampling_mask")
"""Fields of a choice with one item for each sampled token."""
_TYPES: dict[RefusalKind, str] = {
    "budget": "insufficient_quota",
    "unauthorized": "authentication_error",
    "not_found": "not_found_error",
    "upstream": "api_error",
    "internal": "api_error",
    "closed": "api_error",
}


class ChatFold:
    """Folds `chat.completion.chunk` objects into a `chat.completion`."""

    def __init__(self) -> None:
        self._body: Document = {}
        self._choices: dict[int, Document] = {}
        self.ending = False
        self.complete = False
        self.failure: str | None = None

    def feed(self, event: Event) -> None:
        """Read one chunk, or the `[DONE]` that ends the stream."""
        if event.data.strip() == _DONE:
            self.ending = self.complete = True
            return
        chunk = read_document(event.data)
        if "error" in chunk:
            self.failure = text_of(as_document(chunk["error"]).get("message")) or "an error"
            self.ending = True
            return
        for key, value in chunk.items():
            if key == "usage" and value is None:
                continue
            if key not in {"choices", "object"}:
                self._body[key] = value
        for choice in documents(chunk.get("choices")):
            self._feed_choice(choice)

    def _feed_choice(self, choice: Document) -> None:
        index = count_of(choice.get("index"))
        into = self._choices.setdefault(index, {"index": index, "message": {}})
        for key, value in choice.items():
            if key == "delta":
                _merge(into["message"], as_document(value))
            elif key == "logprobs" and value is not None:
                content = as_document(choice["logprobs"]).get("content")
                logprobs: Document = into.setdefault("logprobs", {"content": []})
                logprobs["content"] += items_of(content)
            elif key in _LISTS and value is not None:
                into.setdefault(key, []).extend(items_of(value))
            elif key != "index" and (value is not None or key not in into):
                into[key] = value
        self.ending = self.ending or choice.get("finish_reason") is not None

    def body(self) -> Document | None:
        """Return the completion so far."""
        if not self._body and not self._choices:
            return None
        choices = [self._choices[index] for index in sorted(self._choices)]
        return {**self._body, "object": "chat.completion", "choices": choices}


def _merge(into: Document, delta: Document) -> None:
    for key, value in delta.items():
        if key == "tool_calls":
            calls = into.setdefault("tool_calls", [])
            for call in documents(value):
                _merge_call(calls, call)
        elif key in _GROWING and isinstance(value, str):
            into[key] = text_of(into.get(key)) + value
        elif value is not None or key not in into:
            into[key] = value


def _merge_call(calls: list[Document], delta: Document) -> None:
    index = count_of(delta.get("index"))
    if index > len(calls):
        raise DocumentError(f"tool call {index} after {len(calls)}")
    if index == len(calls):
        calls.append({})
    call = calls[index]
    for key, value in delta.items():
        if key == "function":
            _merge(call.setdefault("function", {}), as_document(value))
        elif key != "index" and value is not None:
            call[key] = value


class ChatWire:
    """The wire of `/chat/completions`."""

    api: ModelApi = "openai-chat"
    path = "/chat/completions"
    version = "v1"

    def path_of(self, request: Document) -> str:  # noqa: ARG002 - one path for all
        """Return the one path of this wire."""
        return self.path

    def fold(self) -> ChatFold:
        """Return a fold for one answer."""
        return ChatFold()

    def explode(self, body: Document) -> Iterator[Event]:
        """Yield one chunk for the message, one for the end, and one for the usage, if any."""
        fields = {k: v for k, v in body.items() if k not in {"choices", "usage", "object"}}
        base = {**fields, "object": "chat.completion.chunk"}
        choices = documents(body.get("choices"))
        first: list[Document] = []
        last: list[Document] = []
        for choice in choices:
            index = choice.get("index", 0)
            delta = dict(as_document(choice.get("message")))
            if calls := documents(delta.get("tool_calls")):
                delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(calls)]
            more = {k: v for k, v in choice.items() if k in {"logprobs", *_LISTS}}
            first.append({"index": index, "delta": delta, "finish_reason": None, **more})
            rest = {k: v for k, v in choice.items() if k not in {"message", *more}}
            last.append({**rest, "index": index, "delta": {}})
        yield _event({**base, "choices": first})
        yield _event({**base, "choices": last})
        if "usage" in body:
            yield _event({**base, "choices": [], "usage": body["usage"]})
        yield Event(None, _DONE)

    def usage(self, body: Document) -> Usage:
        """Return the tokens that `body` reports."""
        usage = as_document(body.get("usage"))
        details = as_document(usage.get("prompt_tokens_details"))
        return Usage(
            input_tokens=count_of(usage.get("prompt_tokens")),
            output_tokens=count_of(usage.get("completion_tokens")),
            cached_tokens=count_of(details.get("cached_tokens")),
        )

    def refusal(self, kind: RefusalKind, message: str) -> Document:
        """Return OpenAI's error object."""
        name = _TYPES.get(kind, "invalid_request_error")
        code = "insufficient_quota" if kind == "budget" else f"gateway_{kind}"
        return {"error": {"message": message, "type": name, "param": None, "code": code}}

    def refusal_event(self, kind: RefusalKind, message: str) -> Event:
        """Return the chunk with which vLLM and others end a broken stream."""
        return _event(self.refusal(kind, message))


def _event(chunk: Document) -> Event:
    return Event(None, json.dumps(chunk, ensure_ascii=False, separators=(",", ":")))


CHAT = ChatWire()
