"""Digests by which a replay finds the recorded request that equals a new one.

Values that an agent generates anew in each process are found by their place in the request, never
by their form: a table for each wire says where ids are. Ids are numbered in the order of their
appearance, so that references between them still count.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from .documents import Document, as_document, documents, items_of, text_of

_PER_PROCESS = {"client_metadata", "metadata", "prompt_cache_key", "safety_identifier", "user"}
"""Fields that describe the agent's process. They are dropped; their ids are known in all texts."""
_IGNORED = _PER_PROCESS | {
    "prompt_cache_retention",
    "service_tier",
    "store",
    "stream",
    "stream_options",
}
"""Fields that change how an answer is sent, but not which answer."""
_PART_OF_ID = re.compile(r"[0-9A-Za-z-]{16,}")
_MOST_OWN = 32


@dataclass(frozen=True, slots=True)
class Shape:
    """The places of ids and texts in a wire."""

    turns: str
    """The key of the conversation: a list of messages or items."""
    opening: frozenset[str]
    """Keys of the text before the conversation."""
    ids: frozenset[str]
    """Keys of messages, items and parts with ids."""
    parts: frozenset[str]
    """Keys of messages and items with lists of parts."""
    holders: frozenset[str] = frozenset()
    """Keys of parts with one object, which may have ids."""


_SHAPES: Mapping[str, Shape] = {
    "openai-chat": Shape(
        "messages",
        frozenset(),
        frozenset({"id", "tool_call_id"}),
        frozenset({"content", "tool_calls"}),
    ),
    "openai-responses": Shape(
        "input",
        frozenset({"instructions"}),
        frozenset({"id", "call_id"}),
        frozenset({"content"}),
    ),
    "anthropic-messages": Shape(
        "messages",
        frozenset({"system"}),
        frozenset({"id", "tool_use_id"}),
        frozenset({"content"}),
    ),
    "gemini": Shape(
        "contents",
        frozenset({"systemInstruction", "system_instruction"}),
        frozenset({"id"}),
        frozenset({"parts"}),
        frozenset({"functionCall", "functionResponse"}),
    ),
}
_UNKNOWN = Shape("messages", frozenset(), frozenset(), frozenset())

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? "
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?: ?(?:Z|[AP]M|UTC|GMT|[+-]\d{2}:?\d{2}))*"
_START = re.compile(
    "|".join(
        (
            rf"\b\d{{4}}-\d{{2}}-\d{{2}}(?:[T ]{_CLOCK})?",
            rf"\b(?:{_DAY})?{_MONTH} \d{{1,2}},? (?:{_CLOCK} )?\d{{4}}(?:,? {_CLOCK})?",
            rf"\b(?:{_DAY})?\d{{1,2}} {_MONTH} \d{{4}}(?: {_CLOCK})?",
            r"\b\d{1,2}/\d{1,2}/\d{4}\b",
            r"/tmp/[\w.+-]+",  # noqa: S108 - read, not written
        )
    )
)
"""What agents tell a model of the moment and the place that they were started at: the date, and
a scratch directory of a random name. Looked for before the model's first word only."""
# Claude Code signs each request in a system block of this name.
_SIGNATURE = "x-anthropic-billing-header"
# Codex puts what a command printed below a head of its own, Qwen Code above a foot.
_RUN, _PRINTED, _DRAWN = "Chunk ID: ", "\nOutput:\n", ("Chunk ID: ", "Wall time: ")
_GROUP = "\nProcess Group PGID: "
_TOLD = ("output", "content", "text", "parts", "functionResponse", "response")


def request_digest(api: str, body: Mapping[str, Any]) -> str:
    """Return the digest of a request, which is equal for equal requests of two processes.

    Fields of the process do not count. Of ids, only their equality counts. The date and a scratch
    directory do not count in what the agent says before the model's first word. The model, the
    tools and all other text count.
    """
    text = _Canonical(_SHAPES.get(api, _UNKNOWN), body).text
    return hashlib.sha256(f"{api}\n{text}".encode()).hexdigest()


def _first(value: object) -> Document:
    return next(iter(documents(value)), dict[str, Any]())


def asks_for_tools(response: Mapping[str, Any]) -> bool:
    """Return whether a recorded answer, of any wire, calls a tool, so that the agent continues."""
    message = as_document(_first(response.get("choices")).get("message"))
    said = [*documents(response.get("output")), *documents(response.get("content"))]
    kinds = (text_of(item.get("type")) for item in said)
    content = as_document(_first(response.get("candidates")).get("content"))
    return (
        bool(message.get("tool_calls"))
        or any("functionCall" in part for part in documents(content.get("parts")))
        or any(kind.endswith(("_call", "tool_use")) for kind in kinds)
    )


@dataclass(slots=True)
class _Canonical:
    """A request with its ids numbered as they appear."""

    shape: Shape
    body: Mapping[str, Any]
    names: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def text(self) -> str:
        kept: Document = {}
        for key, value in self.body.items():
            if key in self.shape.opening:
                kept[key] = self._opened(_unsigned(value))
            elif key == self.shape.turns:
                kept[key] = self._turns(value)
            elif key not in _IGNORED:
                kept[key] = value
        text = json.dumps(kept, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        for number, own in enumerate(_own_ids(self.body)):
            text = text.replace(own, f"own:{number}")
        return text

    def _turns(self, value: object) -> object:
        if not isinstance(value, list):
            return self._opened(value)
        turns: list[object] = []
        opening = True
        for item in cast("list[object]", value):
            turn = self._named(item)
            opening = opening and not _is_the_models(turn)
            turns.append(self._opened(turn) if opening else _printed(turn))
        return turns

    def _named(self, item: object) -> object:
        if not isinstance(item, dict):
            return item
        named: Document = {}
        for key, value in cast("Document", item).items():
            if key in self.shape.parts and _says_nothing(value):
                continue  # an empty message may have no content, or empty content
            if key in self.shape.ids and isinstance(value, str):
                named[key] = self.names.setdefault(value, f"id:{len(self.names)}")
            elif key in self.shape.parts and isinstance(value, list):
                named[key] = [self._named(part) for part in cast("list[object]", value)]
            elif key in self.shape.holders:
                named[key] = self._named(value)
            else:
                named[key] = value
        return named

    def _opened(self, value: object) -> object:
        """Return the text before the model's first word, without date and directory."""
        if isinstance(value, str):
            return _START.sub("~", value)
        if isinstance(value, list):
            return [self._opened(item) for item in cast("list[object]", value)]
        if isinstance(value, dict):
            return {key: self._opened(held) for key, held in cast("Document", value).items()}
        return value


def _says_nothing(content: object) -> bool:
    return content in (None, "", [])


def _is_the_models(turn: object) -> bool:
    """Return whether the model made the item. An item without a role is an answer or a call."""
    role = as_document(turn).get("role", "assistant")
    return role in {"assistant", "model", "tool"}


def _printed(said: object) -> object:
    """Return the output of a tool without the random head or foot that agents add."""
    if isinstance(said, str):
        return _without_frame(said)
    if isinstance(said, list):
        return [_printed(part) for part in cast("list[object]", said)]
    if isinstance(said, dict):
        held = cast("Document", said)
        return {k: _printed(v) if k in _TOLD else v for k, v in held.items()}
    return said


def _without_frame(text: str) -> str:
    head, found, rest = text.partition(_PRINTED)
    if found and head.startswith(_RUN):
        kept = [line for line in head.split("\n") if not line.startswith(_DRAWN)]
        return "\n".join(kept) + found + rest
    before, found, number = text.rpartition(_GROUP)
    return before if found and text.startswith("Command: ") and number.isdecimal() else text


def _own_ids(body: Mapping[str, Any]) -> Sequence[str]:
    """Return the ids of the agent's process, each once, in order of appearance."""
    found: dict[str, None] = {}
    for key in sorted(_PER_PROCESS & body.keys()):
        for text in _texts(body[key]):
            found |= dict.fromkeys(_PART_OF_ID.findall(text))
    return list(found)[:_MOST_OWN]


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for held in (*as_document(value).values(), *items_of(value)):
        yield from _texts(held)


def _unsigned(value: object) -> object:
    if not isinstance(value, list):
        return value
    return [item for item in cast("list[object]", value) if not _is_signature(item)]


def _is_signature(item: object) -> bool:
    return text_of(as_document(item).get("text")).startswith(_SIGNATURE)
