"""The event streams of a tool call: written so that every published client reads them whole.

Both published clients strip all white space at the start of an event's data, so a chunk that
begins with a space loses it. We read streams with httpx-sse, which strips one space, as the
standard says. We write results as ASCII and escape a space at the start of a chunk.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Final

import httpx
from benchflow_contracts import Model
from httpx_sse import EventSource, SSEError
from litestar.response.sse import ServerSentEventMessage

from .errors import OrsError, OrsProtocolError

CHUNK_CHARS: Final = 4096
MAX_ERROR_CHARS: Final = 16_384
"""aiohttp, on which both published clients are built, refuses lines of more than 128 KiB."""
MAX_RESULT_BYTES: Final = 64 * 2**20
PING: Final = b": ping\r\n\r\n"


def encode_event(event: str, data: str) -> bytes:
    """Return one event. A line break in `data` is kept, as a second line of data."""
    return ServerSentEventMessage(data=data, event=event).encode()


def encode_result(result: Model, chunk_chars: int = CHUNK_CHARS) -> Iterator[bytes]:
    """Yield the events `chunk`* and `end` of a result.

    Args:
        result: The result. Its numbers are finite.
        chunk_chars: Characters of JSON in an event.
    """
    # ASCII without spaces between tokens: the only white space is U+0020 inside strings.
    text = json.dumps(
        result.model_dump(mode="json"), ensure_ascii=True, allow_nan=False, separators=(",", ":")
    )
    last = (len(text) - 1) // chunk_chars * chunk_chars
    for start in range(0, len(text), chunk_chars):
        chunk = text[start : start + chunk_chars]
        if chunk[0] == " ":
            chunk = "\\u0020" + chunk[1:]
        yield encode_event("end" if start == last else "chunk", chunk)


def encode_error(message: str) -> bytes:
    """Return the event that ends a call whose tool failed."""
    return encode_event("error", message[:MAX_ERROR_CHARS] or "the tool failed")


@dataclass(slots=True)
class ResultReader:
    """Collects the result of one call from its streams, until it is complete.

    A stream that ends early is followed by another one, which starts again at the first chunk.
    """

    max_bytes: int = MAX_RESULT_BYTES
    task_id: str | None = None
    """The id of the call, once the server has sent it."""

    async def read(self, response: httpx.Response) -> str | None:
        """Return the JSON text of the result, or `None` if the stream ended before its end.

        Raises:
            OrsError: The server reports that the tool failed.
            OrsProtocolError: The stream is not an event stream, or it is too long.
            httpx.HTTPError: The connection failed.
        """
        chunks: list[str] = []
        async for event, data in _events(response, self.max_bytes):
            if event == "task_id":
                self.task_id = data.strip()
            elif event == "chunk":
                chunks.append(data)
            elif event == "end":
                chunks.append(data)
                return "".join(chunks)
            elif event == "error":
                raise OrsError(f"the ORS server reports an error: {data[:MAX_ERROR_CHARS]}")
        return None


async def _events(response: httpx.Response, max_bytes: int) -> AsyncGenerator[tuple[str, str]]:
    headers = {"Content-Type": response.headers.get("Content-Type", "")}
    stream = _BoundedStream(response.aiter_bytes(), max_bytes)
    bounded = httpx.Response(response.status_code, headers=headers, stream=stream)
    # The standard knows one encoding, whatever the header says.
    bounded.encoding = "utf-8"
    events = EventSource(bounded).aiter_sse()
    try:
        async for event in events:
            yield event.event, event.data
    except SSEError as error:
        raise OrsProtocolError(f"the ORS server did not answer with events: {error}") from error
    finally:
        await events.aclose()


class _BoundedStream(httpx.AsyncByteStream):
    """Bytes up to a limit: httpx-sse keeps an unfinished line of any length."""

    def __init__(self, source: AsyncIterator[bytes], max_bytes: int) -> None:
        self._source = source
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._source:
            size += len(part)
            if size > self._max_bytes:
                raise OrsProtocolError(
                    f"a result of the ORS server is longer than {self._max_bytes} bytes"
                )
            yield part
