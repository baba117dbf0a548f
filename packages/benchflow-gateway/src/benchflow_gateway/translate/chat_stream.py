"""Chat Completions streams, read and written."""

import json
from collections.abc import Iterator

from benchflow_contracts import Usage

from benchflow_gateway.documents import (
    Document,
    DocumentError,
    as_document,
    count_of,
    documents,
    read_document,
    text_of,
)
from benchflow_gateway.sse import Event
from benchflow_gateway.wires import CHAT

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
    "stop": "end",
    "tool_calls": "tool",
    "function_call": "tool",
    "length": "length",
    "content_filter": "refusal",
}
_REASONS: dict[Stop, str] = {
    "end": "stop",
    "tool": "tool_calls",
    "length": "length",
    "refusal": "content_filter",
}


class ChatReader:
    """Reads the first choice. The answer ends at `[DONE]`, after the usage."""

    last = Event(None, "[DONE]")

    def __init__(self) -> None:
        self._has_started = False
        self._calls = 0
        self._stop: Stop = "end"
        self._usage = Usage()

    def read(self, event: Event) -> Iterator[Delta]:
        """Yield the deltas of the chunk."""
        if event.data.strip() == "[DONE]":
            yield AnswerEnd(self._stop, self._usage)
            return
        chunk = read_document(event.data)
        if not self._has_started:
            self._has_started = True
            yield AnswerStart(text_of(chunk.get("id")), text_of(chunk.get("model")))
        if isinstance(chunk.get("usage"), dict):
            self._usage = CHAT.usage(chunk)
        for choice in documents(chunk.get("choices")):
            if count_of(choice.get("index")) == 0:
                yield from self._read_delta(as_document(choice.get("delta")))
                self._stop = _STOPS.get(text_of(choice.get("finish_reason")), self._stop)

    def _read_delta(self, delta: Document) -> Iterator[Delta]:
        if thought := text_of(delta.get("reasoning_content")) or text_of(delta.get("reasoning")):
            yield ThoughtDelta(thought)
        if text := text_of(delta.get("content")) or text_of(delta.get("refusal")):
            yield TextDelta(text)
        for call in documents(delta.get("tool_calls")):
            function = as_document(call.get("function"))
            index = count_of(call.get("index"))
            if index == self._calls:
                self._calls += 1
                yield CallStart(text_of(call.get("id")), text_of(function.get("name")))
            elif index != self._calls - 1:
                raise DocumentError(f"tool call {index} out of order")
            if arguments := text_of(function.get("arguments")):
                yield ArgumentsDelta(arguments)


class ChatWriter:
    """Writes chunks of one choice."""

    def __init__(self, *, usage: bool) -> None:
        self._usage = usage
        self._base: Document = {}
        self._calls = 0

    def write(self, delta: Delta) -> Iterator[Event]:
        """Yield the chunks for `delta`."""
        match delta:
            case AnswerStart():
                kind = "chat.completion.chunk"
                self._base = {"id": delta.id, "object": kind, "created": 0, "model": delta.model}
                yield self._chunk({"role": "assistant", "content": ""})
            case TextDelta():
                yield self._chunk({"content": delta.text})
            case ThoughtDelta():
                yield self._chunk({"reasoning_content": delta.text})
            case CallStart():
                self._calls += 1
                function = {"name": delta.name, "arguments": ""}
                yield self._call({"id": delta.id, "type": "function", "function": function})
            case ArgumentsDelta():
                yield self._call({"function": {"arguments": delta.text}})
            case AnswerEnd():
                yield self._chunk({}, _REASONS[delta.stop])
                if self._usage:
                    usage = _usage(delta.usage)
                    yield self._event({**self._base, "choices": [], "usage": usage})
                yield Event(None, "[DONE]")

    def _call(self, call: Document) -> Event:
        return self._chunk({"tool_calls": [{"index": self._calls - 1, **call}]})

    def _chunk(self, delta: Document, reason: str | None = None) -> Event:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return self._event({**self._base, "choices": [choice]})

    def _event(self, chunk: Document) -> Event:
        return Event(None, json.dumps(chunk, ensure_ascii=False))


def _usage(usage: Usage) -> Document:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
