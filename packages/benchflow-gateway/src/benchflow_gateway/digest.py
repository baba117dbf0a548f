"""Digests of requests. A replay finds the recorded request that equals a new request.

An agent generates some values anew in each process. Ids are found by their place in the request:
a table for each wire lists the places. Ids are numbered in the order of their appearance, so that
references between them still count.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from .documents import Document, as_document, documents, items_of, text_of

_PER_PROCESS = {"client_metadata", "metadata", "prompt_cache_key", "safety_identifier", "user"}
"""Fields that describe the agent's process. They are dropped. Their ids are numbered in texts."""
_IGNORED = _PER_PROCESS | {
    "prompt_cache_retention",
    "service_tier",
    "store",
    "stream",
    "stream_options",
}
"""Fields that change the transport of an answer, but not the answer."""
_PART_OF_ID = re.compile(r"[0-9A-Za-z-]{16,}")
_MAX_OWN_IDS = 32


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
"""The date and a random scratch directory, which agents mention at the start of a conversation.
They are ignored only before the model's first message."""
# Claude Code signs each request in a system block of this name.
_SIGNATURE = "x-anthropic-billing-header"
# Codex adds lines above the output of a command, and Qwen Code adds a line below.
_FRAME_START, _OUTPUT_START, _RANDOM_LINES = (
    "Chunk ID: ",
    "\nOutput:\n",
    ("Chunk ID: ", "Wall time: "),
)
_PROCESS_GROUP = "\nProcess Group PGID: "
# Kimi Code begins the result of a tool with the time that the tool took.
_WALL_TIME = re.compile(r"\AWall time: \d+\.\d{3} seconds(?:\n|\Z)")
_OUTPUT_KEYS = ("output", "content", "text", "parts", "functionResponse", "response")


def request_digest(api: str, body: Mapping[str, Any]) -> str:
    """Return the digest of a request. Equal requests of two processes have the same digest.

    Fields of the process are ignored. Of ids, only their equality counts. The date and a scratch
    directory are ignored before the model's first message. The model, the tools and all other text
    count.
    """
    text = _Canonical(_SHAPES.get(api, _UNKNOWN), body).text
    return hashlib.sha256(f"{api}\n{text}".encode()).hexdigest()


def _first(value: object) -> Document:
    return next(iter(documents(value)), dict[str, Any]())


def asks_for_tools(response: Mapping[str, Any]) -> bool:
    """Return whether a recorded answer of any wire calls a tool. If so, the agent continues."""
    message = as_document(_first(response.get("choices")).get("message"))
    items = [*documents(response.get("output")), *documents(response.get("content"))]
    kinds = (text_of(item.get("type")) for item in items)
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
        fields: Document = {}
        for key, value in self.body.items():
            if key in self.shape.opening:
                fields[key] = self._without_start(_without_signature(value))
            elif key == self.shape.turns:
                fields[key] = self._turns(value)
            elif key not in _IGNORED:
                fields[key] = value
        text = json.dumps(fields, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        for number, own in enumerate(_own_ids(self.body)):
            text = text.replace(own, f"own:{number}")
        return text

    def _turns(self, value: object) -> object:
        if not isinstance(value, list):
            return self._without_start(value)
        turns: list[object] = []
        opening = True
        for item in cast("list[object]", value):
            turn = self._number_ids(item)
            opening = opening and not _is_of_model(turn)
            turns.append(self._without_start(turn) if opening else _without_frames(turn))
        return turns

    def _number_ids(self, item: object) -> object:
        if not isinstance(item, dict):
            return item
        numbered: Document = {}
        for key, value in cast("Document", item).items():
            if key in self.shape.parts and _is_empty(value):
                continue  # an empty message may have no content, or empty content
            if key in self.shape.ids and isinstance(value, str):
                numbered[key] = self.names.setdefault(value, f"id:{len(self.names)}")
            elif key in self.shape.parts and isinstance(value, list):
                numbered[key] = [self._number_ids(part) for part in cast("list[object]", value)]
            elif key in self.shape.holders:
                numbered[key] = self._number_ids(value)
            else:
                numbered[key] = value
        return numbered

    def _without_start(self, value: object) -> object:
        """Return a value from before the model's first message, without date and directory."""
        if isinstance(value, str):
            return _START.sub("~", value)
        if isinstance(value, list):
            return [self._without_start(item) for item in cast("list[object]", value)]
        if isinstance(value, dict):
            return {key: self._without_start(v) for key, v in cast("Document", value).items()}
        return value


def _is_empty(content: object) -> bool:
    return content in (None, "", [])


def _is_of_model(turn: object) -> bool:
    """Return whether the turn is an answer, a call or a result. Such a turn may have no role."""
    role = as_document(turn).get("role", "assistant")
    return role in {"assistant", "model", "tool"}


def _without_frames(value: object) -> object:
    """Return the output of a tool without the random head or foot that agents add."""
    if isinstance(value, str):
        return _without_frame(value)
    if isinstance(value, list):
        return [_without_frames(part) for part in cast("list[object]", value)]
    if isinstance(value, dict):
        fields = cast("Document", value)
        return {k: _without_frames(v) if k in _OUTPUT_KEYS else v for k, v in fields.items()}
    return value


def _without_frame(text: str) -> str:
    head, separator, rest = text.partition(_OUTPUT_START)
    if separator and head.startswith(_FRAME_START):
        lines = [line for line in head.split("\n") if not line.startswith(_RANDOM_LINES)]
        return "\n".join(lines) + separator + rest
    before, separator, number = text.rpartition(_PROCESS_GROUP)
    if separator and text.startswith("Command: ") and number.isdecimal():
        return before
    return _WALL_TIME.sub("", text)


def _own_ids(body: Mapping[str, Any]) -> Sequence[str]:
    """Return the ids of the agent's process, without repetitions, in order of appearance."""
    ids: dict[str, None] = {}
    for key in sorted(_PER_PROCESS & body.keys()):
        for text in _texts(body[key]):
            ids |= dict.fromkeys(_PART_OF_ID.findall(text))
    return list(ids)[:_MAX_OWN_IDS]


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for item in (*as_document(value).values(), *items_of(value)):
        yield from _texts(item)


def _without_signature(value: object) -> object:
    if not isinstance(value, list):
        return value
    return [item for item in cast("list[object]", value) if not _is_signature(item)]


def _is_signature(item: object) -> bool:
    return text_of(as_document(item).get("text")).startswith(_SIGNATURE)
