"""Anthropic Messages: https://docs.anthropic.com/en/api/messages-streaming."""

import json
from collections.abc import Iterator
from typing import cast

from benchflow_contracts import ModelApi, Usage

from benchflow_gateway.documents import (
    Document,
    as_document,
    count_of,
    documents,
    read_document,
    text_of,
)
from benchflow_gateway.errors import RefusalKind
from benchflow_gateway.sse import Event

_TYPES: dict[RefusalKind, str] = {
    "budget": "billing_error",
    "unauthorized": "authentication_error",
    "not_found": "not_found_error",
    "too_large": "request_too_large",
    "upstream": "api_error",
    "internal": "api_error",
    "closed": "api_error",
}


class MessagesFold:
    """Folds message and content block events into a message."""

    def __init__(self) -> None:
        self._message: Document | None = None
        self._blocks: dict[int, Document] = {}
        self._inputs: dict[int, str] = {}
        self.ending = False
        self.complete = False
        self.failure: str | None = None

    def feed(self, event: Event) -> None:
        """Read one event. An unknown type is ignored."""
        data = read_document(event.data)
        kind = data.get("type")
        index = count_of(data.get("index"))
        if kind == "message_start":
            self._message = dict(as_document(data.get("message")))
        elif kind == "content_block_start":
            self._blocks[index] = dict(as_document(data.get("content_block")))
        elif kind == "content_block_delta":
            self._grow(index, as_document(data.get("delta")))
        elif kind == "content_block_stop":
            self._close(index)
        elif kind == "message_delta":
            self._end(data)
        elif kind == "message_stop":
            self.ending = self.complete = True
        elif kind == "error":
            self.failure = text_of(as_document(data.get("error")).get("message")) or "an error"
            self.ending = True

    def _grow(self, index: int, delta: Document) -> None:
        block = self._blocks.setdefault(index, {})
        for key, value in delta.items():
            if key == "partial_json":
                self._inputs[index] = self._inputs.get(index, "") + text_of(value)
            elif key == "citation":
                block["citations"] = [*documents(block.get("citations")), value]
            elif key != "type":
                block[key] = text_of(block.get(key)) + text_of(value)

    def _close(self, index: int) -> None:
        if (text := self._inputs.pop(index, "")).strip():
            self._blocks[index]["input"] = read_document(text)

    def _end(self, data: Document) -> None:
        message = self._message = self._message or {}
        message.update(as_document(data.get("delta")))
        usage = {k: v for k, v in as_document(data.get("usage")).items() if v is not None}
        message["usage"] = {**as_document(message.get("usage")), **usage}
        self.ending = self.ending or message.get("stop_reason") is not None

    def body(self) -> Document | None:
        """Return the message so far. An incomplete tool input is the text so far."""
        if self._message is None:
            return None
        blocks = [
            {**self._blocks[index], **({"input": cut} if (cut := self._inputs.get(index)) else {})}
            for index in sorted(self._blocks)
        ]
        return {**self._message, "content": blocks}


class MessagesWire:
    """The wire of `/messages`."""

    api: ModelApi = "anthropic-messages"
    path = "/messages"
    version = "v1"

    def path_of(self, request: Document) -> str:  # noqa: ARG002 - one path for all
        """Return the one path of this wire."""
        return self.path

    def fold(self) -> MessagesFold:
        """Return a fold for one answer."""
        return MessagesFold()

    def explode(self, body: Document) -> Iterator[Event]:
        """Yield each block as its start, its deltas and its stop."""
        usage = as_document(body.get("usage"))
        started: Document = {**body, "content": [], "stop_reason": None, "stop_sequence": None}
        yield _event("message_start", {"message": started})
        for index, block in enumerate(documents(body.get("content"))):
            start, deltas = _split_block(block)
            yield _event("content_block_start", {"index": index, "content_block": start})
            for delta in deltas:
                yield _event("content_block_delta", {"index": index, "delta": delta})
            yield _event("content_block_stop", {"index": index})
        ending = {key: body.get(key) for key in ("stop_reason", "stop_sequence")}
        yield _event("message_delta", {"delta": ending, "usage": usage})
        yield _event("message_stop", {})

    def usage(self, body: Document) -> Usage:
        """Return the tokens. The wire counts cached tokens separately, the contract does not."""
        usage = as_document(body.get("usage"))
        cached = count_of(usage.get("cache_read_input_tokens"))
        fresh = count_of(usage.get("input_tokens"))
        return Usage(
            input_tokens=fresh + cached + count_of(usage.get("cache_creation_input_tokens")),
            output_tokens=count_of(usage.get("output_tokens")),
            cached_tokens=cached,
        )

    def refusal(self, kind: RefusalKind, message: str) -> Document:
        """Return Anthropic's error object."""
        name = _TYPES.get(kind, "invalid_request_error")
        return {"type": "error", "error": {"type": name, "message": message}}

    def refusal_event(self, kind: RefusalKind, message: str) -> Event:
        """Return the `error` event."""
        return Event("error", _dump(self.refusal(kind, message)))


def _split_block(block: Document) -> tuple[Document, list[Document]]:
    """Return a block's start and its deltas. A kind without deltas starts complete."""
    kind = block.get("type")
    if kind == "text":
        deltas: list[Document] = [{"type": "text_delta", "text": text_of(block.get("text"))}]
        citations = documents(block.get("citations"))
        deltas += [{"type": "citations_delta", "citation": citation} for citation in citations]
        return {**{k: v for k, v in block.items() if k != "citations"}, "text": ""}, deltas
    if kind in {"tool_use", "server_tool_use"}:
        raw = _dump(as_document(cast("object", block.get("input"))))
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": raw}]
    if kind == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": text_of(block.get("thinking"))}]
        if "signature" in block:
            deltas.append({"type": "signature_delta", "signature": text_of(block["signature"])})
        start = {k: v for k, v in block.items() if k != "signature"}
        return {**start, "thinking": ""}, deltas
    return block, []


def _event(name: str, data: Document) -> Event:
    return Event(name, _dump({"type": name, **data}))


def _dump(data: Document) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


MESSAGES = MessagesWire()
