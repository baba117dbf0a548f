"""Limits on the answers of a cloud's server, for SDKs that use pyqwest.

This package does not depend on pyqwest, so the module does not import it.
"""

from collections.abc import AsyncGenerator
from typing import Any, Final
from urllib.parse import urlsplit

MOST_BYTES: Final = 1 << 23
"""The limit of an answer after it was unpacked, and of a message in a stream of messages."""
_HEAD, _NO_CONTENT, _SUCCESS, _ERROR = 5, 204, range(200, 300), 400
_MESSAGES = "application/connect+"


def limit_answers(transport: Any, *, files: str) -> None:  # noqa: ANN401 - of pyqwest
    """Limit the answers that a transport of pyqwest returns. Idempotent.

    A larger answer is a `ValueError` of the call, and so is content in the answer to a `DELETE`.
    A stream of messages by Connect's protocol has no limit, but each of its messages has one. Files
    have no limit: the answers to a `GET` of the path `files`, which the caller reads by pieces.
    """
    execute = transport.execute
    if isinstance(execute, _LimitedExecute):
        return
    transport.execute = _LimitedExecute(execute, files)


class _LimitedExecute:
    def __init__(self, execute: Any, files: str) -> None:  # noqa: ANN401 - a method
        self._execute, self._files = execute, files

    async def __call__(self, request: Any) -> Any:  # noqa: ANN401 - of pyqwest
        response = await self._execute(request)
        status = response.status
        if request.method == "DELETE" and status in _SUCCESS and status != _NO_CONTENT:
            await response.aclose()
            raise ValueError(f"the answer to a deletion has the status {status}")
        return type(response)(
            status=status,
            http_version=response.http_version,
            headers=response.headers,
            content=self._content(request, response),
            trailers=response.trailers,
        )

    async def _content(self, request: Any, response: Any) -> AsyncGenerator[bytes]:  # noqa: ANN401
        is_read = response.status < _ERROR
        is_file = is_read and (request.method, urlsplit(str(request.url)).path) == (
            "GET",
            self._files,
        )
        is_stream = is_read and response.headers.get("content-type", "").startswith(_MESSAGES)
        size = _MessageSizes() if is_stream else _Size()
        try:
            async for piece in response.content:
                if not is_file:
                    size.add(piece)
                yield bytes(piece)
        finally:
            await response.aclose()


class _Size:
    def __init__(self) -> None:
        self._size = 0

    def add(self, piece: bytes) -> None:
        """Count the bytes of an answer."""
        self._size += len(piece)
        _check(self._size, "the answer")


class _MessageSizes:
    """Reads the lengths of messages. Each one begins with a byte and the four of its length."""

    def __init__(self) -> None:
        self._head, self._rest = b"", 0

    def add(self, piece: bytes) -> None:
        """Read the lengths in a piece of a stream."""
        at = 0
        while at < len(piece):
            if self._rest:
                count = min(self._rest, len(piece) - at)
                self._rest -= count
            else:
                start = bytes(piece[at : at + _HEAD - len(self._head)])
                self._head, count = self._head + start, len(start)
                if len(self._head) == _HEAD:
                    self._head, self._rest = b"", int.from_bytes(self._head[1:], "big")
                    _check(self._rest, "a message")
            at += count


def _check(size: int, what: str) -> None:
    if size > MOST_BYTES:
        raise ValueError(f"{what} has more than {MOST_BYTES} bytes")
