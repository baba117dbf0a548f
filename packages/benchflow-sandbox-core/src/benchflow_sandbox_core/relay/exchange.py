"""One request to an upstream and the response to it."""

import asyncio
from contextlib import suppress

from .head import Head, HeadError, MessageBody, status_of
from .request_server import BROKEN, close, refuse

_CHUNK = 65536
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def exchange(
    client: Connection, upstream: Connection, head: bytes, body: MessageBody
) -> None:
    """Send a request with its body, and forward the response at the same time.

    If the client disconnects, the exchange ends, so that no call outlives its caller. Both
    connections are closed at the end.
    """
    (reader, writer), (up_reader, up_writer) = client, upstream
    method = head.partition(b" ")[0].decode("latin-1")
    try:
        up_writer.write(head)
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(_send(reader, up_writer, body))
            receiving = group.create_task(_receive(up_reader, writer, method))
            await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                receiving.cancel()
                writer.transport.abort()
            sending.cancel()
    except BaseException:
        up_writer.transport.abort()
        raise
    finally:
        await close(up_writer)


async def _send(
    reader: asyncio.StreamReader, up_writer: asyncio.StreamWriter, body: MessageBody
) -> None:
    """Send one body; return if the client disconnects or its request is broken."""
    try:
        await pump_body(reader, up_writer, body)
    except OSError:
        # An upstream may respond before it reads all; its response still counts.
        if reader.exception() is not None:
            return
    except BROKEN:
        return
    with suppress(OSError):
        # Bytes after the one request are discarded; only the end matters.
        while await reader.read(_CHUNK):
            continue


async def _receive(
    up_reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str
) -> None:
    started = False
    try:
        while True:
            head = Head.parse(await up_reader.readuntil(b"\r\n\r\n"))
            status = status_of(head.start)
            if status >= 200:
                break
            if status != 101:
                writer.write(head.without(set()).encode({}))
        body = head.body(default=None)
        writer.write(head.without(set()).encode({"Connection": "close"}))
        started = True
        if method != "HEAD" and status not in {204, 304}:
            await pump_body(up_reader, writer, body)
        await writer.drain()
    except BROKEN as error:
        if not started:
            await refuse(writer, "502 Bad Gateway", f"invalid response of the upstream: {error!r}")
        else:
            writer.transport.abort()


_MAX_SIZE_LINE = 256


async def pump_body(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: MessageBody
) -> None:
    """Copy exactly one body; raise `HeadError` if its framing is broken."""
    if body.chunked:
        await _chunked(reader, writer)
    elif body.length is None:
        while data := await reader.read(_CHUNK):
            await _put(writer, data)
    else:
        await _exactly(reader, writer, body.length)


async def _put(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


async def _exactly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, size: int) -> None:
    while size:
        data = await reader.read(min(size, _CHUNK))
        if not data:
            raise HeadError("the body ends early")
        size -= len(data)
        await _put(writer, data)


async def _chunked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        line = await _line(reader)
        digits = line.partition(b";")[0].strip()
        if not digits or len(digits) > 15 or digits.strip(b"0123456789abcdefABCDEF"):
            raise HeadError("a malformed chunk size")
        size = int(digits, 16)
        await _put(writer, b"%x\r\n" % size)
        if size == 0:
            break
        await _exactly(reader, writer, size)
        if await reader.readexactly(2) != b"\r\n":
            raise HeadError("a chunk does not end")
        await _put(writer, b"\r\n")
    # Trailers are read and dropped: no upstream needs them.
    while await _line(reader):
        continue
    await _put(writer, b"\r\n")


async def _line(reader: asyncio.StreamReader) -> bytes:
    line = await reader.readuntil(b"\r\n")
    if len(line) > _MAX_SIZE_LINE:
        raise HeadError("a chunk line is too long")
    return line[:-2]
