"""What BuildKit tells of a build under way."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass

_VERTEX, _LOG = 1, 3
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class Vertex:
    """One step, named `[STAGE N/M] INSTRUCTION` when it is one of the Dockerfile's."""

    digest: str
    name: str
    started: bool


@dataclass(frozen=True, slots=True)
class Log:
    """What a step printed."""

    digest: str
    text: str


def read_trace(aux: str) -> Iterator[Vertex | Log]:
    """Decode one message; what is malformed is left out.

    Source: `StatusResponse` of moby/buildkit api/services/control/control.proto, whose numbers
    are the same from 0.8 on.
    """
    try:
        data = base64.b64decode(aux, validate=True)
        for number, value in _fields(data):
            if number == _VERTEX and isinstance(value, bytes):
                yield _vertex(dict(_fields(value)))
            elif number == _LOG and isinstance(value, bytes):
                told = dict(_fields(value))
                yield Log(_text(told.get(1)), _text(told.get(4)))
    except (ValueError, IndexError):
        return


def _vertex(told: dict[int, bytes | int]) -> Vertex:
    return Vertex(_text(told.get(1)), _text(told.get(3)), 5 in told)


def _text(value: bytes | int | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Split a message of protocol buffers; raise `IndexError` when it is cut off."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        if kind == _VARINT:
            value, place = _varint(data, place)
            yield key >> 3, value
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind)
        if kind == _BYTES:
            size, place = _varint(data, place)
        if size is None or place + size > len(data):
            raise IndexError
        yield key >> 3, data[place : place + size]
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80 or shift > 63:
            return value, place
