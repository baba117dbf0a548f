"""Gemini's `generateContent`: https://ai.google.dev/api/generate-content.

The path has the model, and the kind of the answer. The gateway adds both to the
request, as `model` and `stream`, so that the record has them.
"""

import json
import re
from collections.abc import Iterator

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

# A part of only dots could reach another directory of the upstream, with our credential.
_CALL = re.compile(
    r"/models/(?P<model>(?!\.+(?:/|:))[A-Za-z0-9._-]+(?:[/:](?!\.+(?:/|:))[A-Za-z0-9._-]+)*)"
    r":(?P<method>generateContent|streamGenerateContent|countTokens)"
)
_ERRORS: dict[RefusalKind, tuple[int, str]] = {
    "budget": (402, "RESOURCE_EXHAUSTED"),
    "unauthorized": (401, "UNAUTHENTICATED"),
    "not_found": (404, "NOT_FOUND"),
    "upstream": (502, "UNAVAILABLE"),
    "internal": (500, "INTERNAL"),
    "closed": (410, "UNAVAILABLE"),
}
_TEXT_ALONE = {"text", "thought"}


def gemini_call(path: str) -> tuple[str, str] | None:
    """Return the model and the method of a path, or `None` if the path is not a call."""
    match = _CALL.fullmatch(path)
    return (match["model"], match["method"]) if match is not None else None


class GeminiFold:
    """Folds the parts of a streamed answer into one answer."""

    def __init__(self) -> None:
        self._body: Document = {}
        self._candidates: dict[int, Document] = {}
        self.ending = False
        self.complete = False
        self.failure: str | None = None

    def feed(self, event: Event) -> None:
        """Read one chunk. A finish reason or a blocked prompt ends the answer."""
        chunk = read_document(event.data)
        if "error" in chunk:
            self.failure = text_of(as_document(chunk["error"]).get("message")) or "an error"
            self.ending = True
            return
        self._body |= {key: value for key, value in chunk.items() if key != "candidates"}
        for candidate in documents(chunk.get("candidates")):
            self._feed_candidate(candidate)
        if as_document(chunk.get("promptFeedback")).get("blockReason"):
            self.ending = self.complete = True

    def _feed_candidate(self, candidate: Document) -> None:
        index = count_of(candidate.get("index"))
        into = self._candidates.setdefault(index, {})
        for key, value in candidate.items():
            if key == "content":
                into["content"] = _joined(as_document(into.get("content")), as_document(value))
            else:
                into[key] = value
        if candidate.get("finishReason") is not None:
            self.ending = self.complete = True

    def body(self) -> Document | None:
        """Return the answer so far."""
        if not self._body and not self._candidates:
            return None
        if not self._candidates:
            return self._body
        candidates = [self._candidates[index] for index in sorted(self._candidates)]
        return {**self._body, "candidates": candidates}


def _joined(before: Document, more: Document) -> Document:
    """Return one content. Adjacent texts become one part."""
    parts, added = documents(before.get("parts")), documents(more.get("parts"))
    if parts and added and _are_one_text(parts[-1], added[0]):
        last = {**parts[-1], "text": text_of(parts[-1]["text"]) + text_of(added[0]["text"])}
        parts, added = [*parts[:-1], last], added[1:]
    content = {**before, **more}
    return {**content, "parts": [*parts, *added]} if "parts" in content else content


def _are_one_text(first: Document, second: Document) -> bool:
    plain = all("text" in part and part.keys() <= _TEXT_ALONE for part in (first, second))
    return plain and bool(first.get("thought")) == bool(second.get("thought"))


class GeminiWire:
    """The wire of `/models/MODEL:generateContent` and `:streamGenerateContent?alt=sse`."""

    api: ModelApi = "gemini"
    path = "/models"
    version = "v1beta"

    def path_of(self, request: Document) -> str:
        """Return the path of the request's model, streamed or not."""
        method = "streamGenerateContent?alt=sse" if request.get("stream") else "generateContent"
        return f"{self.path}/{text_of(request.get('model'))}:{method}"

    def fold(self) -> GeminiFold:
        """Return a fold for one answer."""
        return GeminiFold()

    def explode(self, body: Document) -> Iterator[Event]:
        """Yield the body as one event, because events and whole answers have the same form."""
        yield Event(None, json.dumps(body, ensure_ascii=False, separators=(",", ":")))

    def usage(self, body: Document) -> Usage:
        """Return the tokens; thoughts are part of the output."""
        usage = as_document(body.get("usageMetadata"))
        prompt = count_of(usage.get("promptTokenCount"))
        answer = count_of(usage.get("candidatesTokenCount"))
        return Usage(
            input_tokens=prompt + count_of(usage.get("toolUsePromptTokenCount")),
            output_tokens=answer + count_of(usage.get("thoughtsTokenCount")),
            cached_tokens=count_of(usage.get("cachedContentTokenCount")),
        )

    def refusal(self, kind: RefusalKind, message: str) -> Document:
        """Return Google's error object."""
        code, status = _ERRORS.get(kind, (400, "INVALID_ARGUMENT"))
        return {"error": {"code": code, "message": message, "status": status}}

    def refusal_event(self, kind: RefusalKind, message: str) -> Event:
        """Return the chunk with which Google ends a broken stream."""
        return Event(None, json.dumps(self.refusal(kind, message)))


GEMINI = GeminiWire()
