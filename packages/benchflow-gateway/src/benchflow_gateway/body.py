"""Reading the body of a request, from an agent that may be slow or hostile."""

import asyncio

from aiohttp import web

from .errors import RefusedError
from .limits import Limits


async def read_body(request: web.BaseRequest, limits: Limits) -> bytes:
    """Return the whole body.

    Raises:
        RefusedError: It is too big, or does not come in time.
        asyncio.CancelledError: The agent went away.
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
