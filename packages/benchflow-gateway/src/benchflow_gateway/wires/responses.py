"""OpenAI Responses: https://platform.openai.com/docs/api-reference/responses-streaming."""

import json
from collections.abc import Iterator
from typing import Any

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

from .chat import CHAT

_LAST = {"response.completed", "response.incomplete", "response.failed"}


class ResponsesFold:
    """Folds response events. The last event has the whole response."""

    def __init__(self) -> None:
        self._response: Document | None = None
        self._items: dict[int, Document] = {}
        self._texts: dict[int, str] = {}
        self.ending = False
        self.complete = False
        self.failure: str | None = None

    def feed(self, event: Event) -> None:
        """Read one event. An unknown type is ignored."""
        data = read_document(event.data)
        kind = text_of(data.get("type"))
        if isinstance(data.get("response"), dict):
            self._response = as_document(data["response"])
        if kind in _LAST:
            self.ending = self.complete = True
            error = as_document((self._response or {}).get("error"))
            if kind == "response.failed":
                self.failure = text_of(error.get("message")) or "an error"
        elif kind == "error":
            self.failure = text_of(data.get("message")) or "an error"
            self.ending = True
        elif kind in {"response.output_item.added", "response.output_item.done"}:
            self._items[count_of(data.get("output_index"))] = as_document(data.get("item"))
        elif kind == "response.output_text.delta":
            index = count_of(data.get("output_index"))
            self._texts[index] = self._texts.get(index, "") + text_of(data.get("delta"))

    def body(self) -> Document | None:
        """Return the response so far."""
        if self._response is None:
            return None
        if documents(self._response.get("output")):
            return self._response
        return {**self._response, "output": [self._item(i) for i in sorted(self._items)]}

    def _item(self, index: int) -> Document:
        item = self._items[index]
        if item.get("type") == "message" and not item.get("content") and index in self._texts:
            part: Document = {"type": "output_text", "text": self._texts[index], "annotations": []}
            return {**item, "content": [part]}
        return item


class ResponsesWire:
    """The wire of `/responses`."""

    api: ModelApi = "openai-responses"
    path = "/responses"
    version = "v1"

    def path_of(self, request: Document) -> str:  # noqa: ARG002 - one path for all
        """Return the one path of this wire."""
        return self.path

    def fold(self) -> ResponsesFold:
        """Return a fold for one answer."""
        return ResponsesFold()

    def explode(self, body: Document) -> Iterator[Event]:
        """Yield each item when it is added, then its parts, then the finished item."""
        started: Document = {**body, "status": "in_progress", "output": [], "usage": None}
        make_event = _EventSequence()
        yield make_event("response.created", {"response": started})
        yield make_event("response.in_progress", {"response": started})
        for index, item in enumerate(documents(body.get("output"))):
            yield from explode_item(make_event, index, item)
        status = text_of(body.get("status"))
        last = f"response.{status}" if f"response.{status}" in _LAST else "response.completed"
        yield make_event(last, {"response": body})

    def usage(self, body: Document) -> Usage:
        """Return the tokens that `body` reports."""
        usage = as_document(body.get("usage"))
        details = as_document(usage.get("input_tokens_details"))
        return Usage(
            input_tokens=count_of(usage.get("input_tokens")),
            output_tokens=count_of(usage.get("output_tokens")),
            cached_tokens=count_of(details.get("cached_tokens")),
        )

    def refusal(self, kind: RefusalKind, message: str) -> Document:
        """Return OpenAI's error object."""
        return CHAT.refusal(kind, message)

    def refusal_event(self, kind: RefusalKind, message: str) -> Event:
        """Return the `error` event."""
        code = as_document(CHAT.refusal(kind, message)["error"])["code"]
        data = {"type": "error", "code": code, "message": message, "param": None}
        return Event("error", json.dumps(data))


class _EventSequence:
    """Makes events with increasing `sequence_number`."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, name: str, data: Document) -> Event:
        event = {"type": name, "sequence_number": self._next, **data}
        self._next += 1
        return Event(name, json.dumps(event, ensure_ascii=False, separators=(",", ":")))


def explode_item(make_event: "_EventSequence", index: int, item: Document) -> Iterator[Event]:
    """Yield the events of one output item."""
    at: dict[str, Any] = {"output_index": index}
    item_at = {**at, "item_id": item.get("id")}
    kind = item.get("type")
    empty: dict[str, Document] = {
        "message": {"content": []},
        "function_call": {"arguments": ""},
    }
    started: Document = {**item, **empty.get(text_of(kind), {})}
    if "status" in item:
        started["status"] = "in_progress"
    yield make_event("response.output_item.added", {**at, "item": started})
    if kind == "message":
        for number, part in enumerate(documents(item.get("content"))):
            yield from _explode_part(make_event, {**item_at, "content_index": number}, part)
    elif kind == "function_call":
        arguments = text_of(item.get("arguments"))
        name = "response.function_call_arguments"
        yield make_event(f"{name}.delta", {**item_at, "delta": arguments})
        yield make_event(f"{name}.done", {**item_at, "arguments": arguments})
    yield make_event("response.output_item.done", {**at, "item": item})


def _explode_part(make_event: "_EventSequence", at: Document, part: Document) -> Iterator[Event]:
    if part.get("type") != "output_text":
        yield make_event("response.content_part.added", {**at, "part": part})
    else:
        text = text_of(part.get("text"))
        yield make_event("response.content_part.added", {**at, "part": {**part, "text": ""}})
        yield make_event("response.output_text.delta", {**at, "delta": text})
        yield make_event("response.output_text.done", {**at, "text": text})
    yield make_event("response.content_part.done", {**at, "part": part})


RESPONSES = ResponsesWire()
