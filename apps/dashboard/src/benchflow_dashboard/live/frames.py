"""Server-sent events as bytes. A frame is encoded once, and readers share the bytes."""

import json
import re
from collections.abc import Iterable
from typing import Final

from litestar.response.sse import ServerSentEventMessage

_NAME: Final = re.compile(r"[a-z][a-z_-]*", re.ASCII)
_POSITION: Final = re.compile(r"-1|0|[1-9]\d{0,14}", re.ASCII)
HEARTBEAT: Final = b":\n\n"


class EncodedFrame(ServerSentEventMessage):
    """A message whose bytes exist already. Litestar sends the bytes as they are."""

    def __init__(self, body: bytes) -> None:
        super().__init__(data=None)
        self._body = body

    def encode(self) -> bytes:
        """Return the bytes."""
        return self._body


def encode_event(event: str, data: object) -> bytes:
    """Return one event with `data` as JSON.

    The JSON is ASCII on one line: a CR, an LF or a NUL of `data` is an escape in it, so that no
    value can end a field or begin another one.

    Raises:
        ValueError: `event` is not a lower-case name, or `data` has a number without a JSON form.
    """
    if not _NAME.fullmatch(event):
        raise ValueError(f"not the name of an event: {event!r}")
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return f"event: {event}\ndata: {text}\n\n".encode("ascii")


def encode_id(positions: Iterable[int]) -> bytes:
    """Return the id line of an event: one position for each rollout of the stream."""
    return f"id: {','.join(str(int(each)) for each in positions)}\n".encode("ascii")


def encode_retry(milliseconds: int) -> bytes:
    """Return the line that sets how long a browser waits before it connects again."""
    return f"retry: {int(milliseconds)}\n".encode("ascii")


def read_id(text: str, count: int) -> tuple[int, ...] | None:
    """Return the positions of an id; `None` if the text is not an id of `count` rollouts."""
    parts = text.split(",")
    if len(parts) != count or not all(_POSITION.fullmatch(part) for part in parts):
        return None
    return tuple(int(part) for part in parts)
