"""Read the engine's images, which consist of protocol buffers.

See images/*.proto of CRIU 4.2. The engine writes them. A sandbox controls only names and addresses
in them.
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
        OSError: The image does not exist, or is truncated.
    """
    content = Path(path).read_bytes()
    at = _MAGIC
    while at < len(content):
        if at + _SIZE.size > len(content):
            raise OSError(22, f"{path} is truncated")
        (size,) = _SIZE.unpack_from(content, at)
        at += _SIZE.size + size
        if at > len(content):
            raise OSError(22, f"{path} is truncated")
        yield content[at - size : at]


def fields(entry: bytes) -> Iterator[Field]:
    """Yield the fields of a message: a number, or the bytes of a string or of an inner message.

    Raises:
        OSError: The entry is not a message.
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
            raise OSError(22, "an entry of an image is truncated")
        yield key >> 3, entry[at : at + size]
        at += size


def numbers(entry: bytes) -> dict[int, int]:
    """Return the number fields of a message."""
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
    raise OSError(22, "a number in an image is truncated")
