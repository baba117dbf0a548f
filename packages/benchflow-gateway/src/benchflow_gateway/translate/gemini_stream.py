"""Write Gemini streams."""

import json
from collections.abc import Iterator

from benchflow_contracts import Usage

from benchflow_gateway.documents import Document, DocumentError, read_document
from benchflow_gateway.sse import Event

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

_REASONS: dict[Stop, str] = {
    "end": "STOP",
    "tool": "STOP",
    "length": "MAX_TOKENS",
    "refusal": "SAFETY",
}
_MALFORMED = "MALFORMED_FUNCTION_CALL"


class GeminiWriter:
    """Writes one part per event. A function call is written when its arguments are complete."""

    def __init__(self) -> None:
        self._base: Document = {}
        self._call: CallStart | None = None
        self._arguments = ""
        self._malformed = False

    def write(self, delta: Delta) -> Iterator[Event]:
        """Yield the chunks for `delta`."""
        match delta:
            case AnswerStart():
                self._base = {"modelVersion": delta.model, "responseId": delta.id}
            case TextDelta():
                yield from self._close()
                yield self._part({"text": delta.text})
            case ThoughtDelta():
                yield from self._close()
                yield self._part({"text": delta.text, "thought": True})
            case CallStart():
                yield from self._close()
                self._call = delta
            case ArgumentsDelta():
                self._arguments += delta.text
            case AnswerEnd():
                yield from self._close()
                reason = _MALFORMED if self._malformed else _REASONS[delta.stop]
                yield self._chunk([], finishReason=reason, usage=_usage(delta.usage))

    def _close(self) -> Iterator[Event]:
        call, arguments = self._call, self._arguments
        self._call, self._arguments = None, ""
        if call is None:
            return
        try:
            args = read_document(arguments or "{}")
        except DocumentError:
            # The wire needs an object here. It has a finish reason for malformed calls.
            self._malformed = True
            return
        yield self._part({"functionCall": {"id": call.id, "name": call.name, "args": args}})

    def _part(self, part: Document) -> Event:
        return self._chunk([part])

    def _chunk(
        self, parts: list[Document], *, usage: Document | None = None, **ended: str
    ) -> Event:
        content = {"role": "model", "parts": parts}
        chunk: Document = {"candidates": [{"content": content, **ended, "index": 0}], **self._base}
        if usage is not None:
            chunk["usageMetadata"] = usage
        return Event(None, json.dumps(chunk, ensure_ascii=False))


def _usage(usage: Usage) -> Document:
    return {
        "promptTokenCount": usage.input_tokens,
        "candidatesTokenCount": usage.output_tokens,
        "totalTokenCount": usage.input_tokens + usage.output_tokens,
        "cachedContentTokenCount": usage.cached_tokens,
    }
