"""Copy one HTTP body with backpressure, and no byte after it."""

import asyncio

from .head import HeadError, MessageBody

_CHUNK = 65536
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
            raise HeadError("a body that ends early")
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
            raise HeadError("a chunk that does not end")
        await _put(writer, b"\r\n")
    # Trailers are read and dropped: no upstream needs them.
    while await _line(reader):
        continue
    await _put(writer, b"\r\n")


async def _line(reader: asyncio.StreamReader) -> bytes:
    line = await reader.readuntil(b"\r\n")
    if len(line) > _MAX_SIZE_LINE:
        raise HeadError("a chunk line that is too long")
    return line[:-2]
