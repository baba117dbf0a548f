"""Anthropic Messages streams, read and written."""

import json
from collections.abc import Iterator

from benchflow_contracts import Usage

from benchflow_gateway.documents import Document, as_document, read_document, text_of
from benchflow_gateway.sse import Event
from benchflow_gateway.wires import MESSAGES

from .delta import (
    AnswerEnd,
    AnswerStart,
    ArgumentsDelta,
    CallStart,
    Delta,
    Stop,
    TextDelta,
    ThoughtDelta,
)

_STOPS: dict[str, Stop] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "tool_use": "tool",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}
_REASONS: dict[Stop, str] = {
    "end": "end_turn",
    "tool": "tool_use",
    "length": "max_tokens",
    "refusal": "refusal",
}


class MessagesReader:
    """Reads text, thinking and tool use. The answer ends at `message_stop`."""

    last = Event("message_stop", '{"type":"message_stop"}')

    def __init__(self) -> None:
        self._message: Document = {}
        self._stop: Stop = "end"

    def read(self, event: Event) -> Iterator[Delta]:
        """Yield the deltas of the event."""
        data = read_document(event.data)
        kind = data.get("type")
        if kind == "message_start":
            self._message = as_document(data.get("message"))
            tokens = MESSAGES.usage(self._message).input_tokens
            yield AnswerStart(
                text_of(self._message.get("id")), text_of(self._message.get("model")), tokens
            )
        elif kind == "content_block_start":
            block = as_document(data.get("content_block"))
            if block.get("type") == "tool_use":
                yield CallStart(text_of(block.get("id")), text_of(block.get("name")))
            elif text := text_of(block.get("text")):
                yield TextDelta(text)
        elif kind == "content_block_delta":
            yield from _read_delta(as_document(data.get("delta")))
        elif kind == "message_delta":
            reason = text_of(as_document(data.get("delta")).get("stop_reason"))
            self._stop = _STOPS.get(reason, self._stop)
            usage = {**as_document(self._message.get("usage")), **as_document(data.get("usage"))}
            self._message = {**self._message, "usage": usage}
        elif kind == "message_stop":
            yield AnswerEnd(self._stop, MESSAGES.usage(self._message))


def _read_delta(delta: Document) -> Iterator[Delta]:
    if text := text_of(delta.get("text")):
        yield TextDelta(text)
    elif thought := text_of(delta.get("thinking")):
        yield ThoughtDelta(thought)
    elif arguments := text_of(delta.get("partial_json")):
        yield ArgumentsDelta(arguments)


class MessagesWriter:
    """Writes one content block after the other."""

    def __init__(self) -> None:
        self._open: str | None = None
        self._index = -1

    def write(self, delta: Delta) -> Iterator[Event]:
        """Yield the events for `delta`."""
        match delta:
            case AnswerStart():
                yield _event("message_start", {"message": _empty_message(delta)})
            case TextDelta():
                yield from self._in_block("text", {"text": ""})
                yield self._delta({"type": "text_delta", "text": delta.text})
            case ThoughtDelta():
                yield from self._in_block("thinking", {"thinking": "", "signature": ""})
                yield self._delta({"type": "thinking_delta", "thinking": delta.text})
            case CallStart():
                yield from self._close()
                block: Document = {"id": delta.id, "name": delta.name, "input": {}}
                yield from self._in_block("tool_use", block)
            case ArgumentsDelta():
                yield self._delta({"type": "input_json_delta", "partial_json": delta.text})
            case AnswerEnd():
                yield from self._close()
                ending = {"stop_reason": _REASONS[delta.stop], "stop_sequence": None}
                yield _event("message_delta", {"delta": ending, "usage": _usage(delta.usage)})
                yield _event("message_stop", {})

    def _in_block(self, kind: str, start: Document) -> Iterator[Event]:
        if self._open == kind:
            return
        yield from self._close()
        self._open = kind
        self._index += 1
        block = {"type": kind, **start}
        yield _event("content_block_start", {"index": self._index, "content_block": block})

    def _close(self) -> Iterator[Event]:
        if self._open is not None:
            self._open = None
            yield _event("content_block_stop", {"index": self._index})

    def _delta(self, delta: Document) -> Event:
        return _event("content_block_delta", {"index": self._index, "delta": delta})


def _empty_message(start: AnswerStart) -> Document:
    return {
        "id": start.id,
        "type": "message",
        "role": "assistant",
        "model": start.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": start.input_tokens, "output_tokens": 0},
    }


def _usage(usage: Usage) -> Document:
    return {
        "input_tokens": usage.input_tokens - usage.cached_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
    }


def _event(name: str, data: Document) -> Event:
    return Event(name, json.dumps({"type": name, **data}, ensure_ascii=False))
