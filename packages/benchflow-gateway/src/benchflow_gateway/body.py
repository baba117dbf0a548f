"""Read the body of a request from an agent that may be slow or hostile."""

import asyncio
from typing import Final

from aiohttp import web

from .documents import Document, DocumentError, read_document
from .errors import RefusedError
from .limits import Limits
from .structure import has_too_many_values

_AT_ONCE: Final = 256 * 1024
"""A body below this size is parsed at once, because a thread would cost more."""


def declared_size(request: web.BaseRequest, limits: Limits) -> int:
    """Return the maximum length of the body."""
    length = request.content_length
    return limits.request_bytes if length is None else min(length, limits.request_bytes)


async def parse_body(data: bytes, limits: Limits, turn: asyncio.Lock) -> Document:
    """Return the JSON object of a body. Long bodies are parsed in a thread, one at a time.

    Raises:
        RefusedError: The body is not a JSON object, is nested too deeply, or has too many values.
    """
    if len(data) <= _AT_ONCE:
        return _parsed(data, limits)
    async with turn:
        return await asyncio.to_thread(_parsed, data, limits)


def _parsed(data: bytes, limits: Limits) -> Document:
    if has_too_many_values(data, limits.request_values):
        most = f"a request may hold at most {limits.request_values} JSON values"
        raise RefusedError("too_large", 413, most)
    try:
        return read_document(data)
    except DocumentError as error:
        raise RefusedError("invalid", 400, f"the request: {error}") from error


async def read_body(request: web.BaseRequest, limits: Limits) -> bytes:
    """Return the whole body.

    Raises:
        RefusedError: The body is too big, or does not arrive in time.
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
        async with asyncio.timeout(limits.body_sec):
            async for piece in request.content.iter_any():
                data += piece
                if len(data) > limits.request_bytes:
                    raise too_large
    except TimeoutError as error:
        raise RefusedError("invalid", 408, "the request did not come in time") from error
    except web.RequestPayloadError as error:
        raise RefusedError("invalid", 400, "the request's body is malformed") from error
    return bytes(data)
