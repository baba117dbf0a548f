"""Read the body of a request from an agent that may be slow or hostile."""

import asyncio
import re
from typing import Final

from aiohttp import web
from benchflow_contracts.pausing import running_timeout

from .documents import Document, DocumentError, read_document
from .errors import RefusedError
from .limits import Limits

_PIECE: Final = 256 * 1024
"""The number of bytes that are scanned at once. Other threads may run between two scans."""
_BEGINNINGS: Final = (b",", b"[", b"{")
_IN_STRING = re.compile(rb"(?:[^\"\\]++|\\[\s\S])*+")
_OUTSIDE = re.compile(rb"[^\"\[{,]*+")
_QUOTE = ord('"')


def has_too_many_values(data: bytes, limit: int) -> bool:
    """Return whether the JSON text `data` has more than about `limit` values.

    For text that is not JSON the result is meaningless, but it takes no longer.
    """
    total = 0
    for at in range(0, len(data), _PIECE):
        # Separators inside strings count here, too. Few texts need the exact count below.
        total += sum(data.count(mark, at, at + _PIECE) for mark in _BEGINNINGS)
        if total > limit:
            return _count_values(data, limit) > limit
    return False


def _count_values(data: bytes, limit: int) -> int:
    count, at, in_string = 0, 0, False
    while at < len(data) and count <= limit:
        end = min(at + _PIECE, len(data))
        before = at
        match = (_IN_STRING if in_string else _OUTSIDE).match(data, at, end)
        at = match.end() if match is not None else end
        if at == end:
            continue
        if data[at] == _QUOTE:
            in_string = not in_string
            at += 1
        elif not in_string:
            count += 1
            at += 1
        elif at == before:
            break  # a lone backslash at the end of the text
    return count


_AT_ONCE: Final = 256 * 1024
"""A body of at most this size is parsed in the event loop, because a thread would cost more."""


def declared_size(request: web.BaseRequest, limits: Limits) -> int:
    """Return the maximum length of the body. That of a compressed body is the limit itself."""
    length = None if "Content-Encoding" in request.headers else request.content_length
    return limits.request_bytes if length is None else min(length, limits.request_bytes)


async def parse_body(data: bytes, limits: Limits, lock: asyncio.Lock) -> Document:
    """Return the JSON object of a body. Long bodies are parsed in a thread, one at a time.

    Raises:
        RefusedError: The body is not a JSON object, is nested too deeply, or has too many values.
    """
    if len(data) <= _AT_ONCE:
        return _parsed(data, limits)
    async with lock:
        return await asyncio.to_thread(_parsed, data, limits)


def _parsed(data: bytes, limits: Limits) -> Document:
    if has_too_many_values(data, limits.request_values):
        message = f"a request may have at most {limits.request_values} JSON values"
        raise RefusedError("too_large", 413, message)
    try:
        return read_document(data)
    except DocumentError as error:
        raise RefusedError("invalid", 400, f"the request: {error}") from error


async def read_body(request: web.BaseRequest, limits: Limits) -> bytes:
    """Return the whole body.

    Raises:
        RefusedError: The body is too large, is malformed, or does not arrive in time.
        asyncio.CancelledError: The agent closed the connection.
    """
    too_large = RefusedError(
        "too_large", 413, f"a request may have at most {limits.request_bytes} bytes"
    )
    if (request.content_length or 0) > limits.request_bytes:
        raise too_large
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    data = bytearray()
    try:
        async with running_timeout(limits.body_sec):
            async for piece in request.content.iter_any():
                data += piece
                if len(data) > limits.request_bytes:
                    raise too_large
    except TimeoutError as error:
        raise RefusedError("invalid", 408, "the request did not arrive in time") from error
    except web.RequestPayloadError as error:
        raise RefusedError("invalid", 400, "the request's body is malformed") from error
    return bytes(data)
