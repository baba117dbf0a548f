"""Reading what the engine wrote: its images are entries of protocol buffers.

See images/*.proto of CRIU 4.2. They are the engine's own; what a box can choose in them are
names and addresses.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

_MAGIC = 8
_SIZE = struct.Struct("<I")
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5

Field = tuple[int, int | bytes]


def entries(path: str) -> Iterator[bytes]:
    """Yield the entries of an image.

    Raises:
        OSError: There is no such image, or it ends too early.
    """
    content = Path(path).read_bytes()
    at = _MAGIC
    while at < len(content):
        if at + _SIZE.size > len(content):
            raise OSError(22, f"{path} is cut off")
        (size,) = _SIZE.unpack_from(content, at)
        at += _SIZE.size + size
        if at > len(content):
            raise OSError(22, f"{path} is cut off")
        yield content[at - size : at]


def fields(entry: bytes) -> Iterator[Field]:
    """Yield the fields of a message: numbers, or the bytes of a string or of another message.

    Raises:
        OSError: It is no message.
    """
    at = 0
    while at < len(entry):
        key, at = _varint(entry, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(entry, at)
            yield key >> 3, value
            continue
        size = {_FIXED_64: 8, _FIXED_32: 4}.get(kind, 0)
        if kind == _BYTES:
            size, at = _varint(entry, at)
        if (not size and kind != _BYTES) or at + size > len(entry):
            raise OSError(22, "an entry of an image is cut off")
        yield key >> 3, entry[at : at + size]
        at += size


def numbers(entry: bytes) -> dict[int, int]:
    """Return the fields of a message that are numbers."""
    return {key: value for key, value in fields(entry) if isinstance(value, int)}


def _varint(entry: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        if at + place >= len(entry):
            break
        byte = entry[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    raise OSError(22, "a number in an image is cut off")
