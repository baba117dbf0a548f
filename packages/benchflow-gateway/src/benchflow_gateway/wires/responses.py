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
        begun: Document = {**body, "status": "in_progress", "output": [], "usage": None}
        numbered = _Numbered()
        yield numbered("response.created", {"response": begun})
        yield numbered("response.in_progress", {"response": begun})
        for index, item in enumerate(documents(body.get("output"))):
            yield from explode_item(numbered, index, item)
        status = text_of(body.get("status"))
        last = f"response.{status}" if f"response.{status}" in _LAST else "response.completed"
        yield numbered(last, {"response": body})

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


class _Numbered:
    """Makes events, each with the next `sequence_number`."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, name: str, data: Document) -> Event:
        numbered = {"type": name, "sequence_number": self._next, **data}
        self._next += 1
        return Event(name, json.dumps(numbered, ensure_ascii=False, separators=(",", ":")))


def explode_item(numbered: "_Numbered", index: int, item: Document) -> Iterator[Event]:
    """Yield the events of one output item."""
    at: dict[str, Any] = {"output_index": index}
    named = {**at, "item_id": item.get("id")}
    kind = item.get("type")
    empty: dict[str, Document] = {
        "message": {"content": []},
        "function_call": {"arguments": ""},
    }
    started: Document = {**item, **empty.get(text_of(kind), {})}
    if "status" in item:
        started["status"] = "in_progress"
    yield numbered("response.output_item.added", {**at, "item": started})
    if kind == "message":
        for number, part in enumerate(documents(item.get("content"))):
            yield from _explode_part(numbered, {**named, "content_index": number}, part)
    elif kind == "function_call":
        arguments = text_of(item.get("arguments"))
        name = "response.function_call_arguments"
        yield numbered(f"{name}.delta", {**named, "delta": arguments})
        yield numbered(f"{name}.done", {**named, "arguments": arguments})
    yield numbered("response.output_item.done", {**at, "item": item})


def _explode_part(numbered: "_Numbered", at: Document, part: Document) -> Iterator[Event]:
    if part.get("type") != "output_text":
        yield numbered("response.content_part.added", {**at, "part": part})
    else:
        text = text_of(part.get("text"))
        yield numbered("response.content_part.added", {**at, "part": {**part, "text": ""}})
        yield numbered("response.output_text.delta", {**at, "delta": text})
        yield numbered("response.output_text.done", {**at, "text": text})
    yield numbered("response.content_part.done", {**at, "part": part})


RESPONSES = ResponsesWire()
