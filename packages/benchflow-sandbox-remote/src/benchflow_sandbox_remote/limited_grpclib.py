"""A limit on the messages of a cloud's server, for SDKs that use grpclib.

This package does not depend on grpclib, so the module does not import it.
"""

from typing import Any, Final

MOST_BYTES: Final = 1 << 26
"""The limit of a message. A list of the sandboxes has 100 of them in one message."""


def limit_messages(client: Any) -> None:  # noqa: ANN401 - the module `grpclib.client`
    """Limit the messages that the calls of this process receive. Idempotent.

    A larger message is a `ValueError` of the call. Its bytes are not read.
    """
    receive = client.recv_message
    if not isinstance(receive, _LimitedReceive):
        client.recv_message = _LimitedReceive(receive)


class _LimitedReceive:
    def __init__(self, receive: Any) -> None:  # noqa: ANN401 - a function
        self._receive = receive

    async def __call__(self, stream: Any, codec: Any, message_type: Any) -> Any:  # noqa: ANN401
        return await self._receive(_LimitedStream(stream), codec, message_type)


class _LimitedStream:
    """A stream, as the reader of one message uses it: the length first, then the message."""

    def __init__(self, stream: Any) -> None:  # noqa: ANN401 - of grpclib
        self._stream = stream

    async def recv_data(self, size: int) -> bytes:
        """Receive `size` bytes."""
        if size > MOST_BYTES:
            raise ValueError(f"a message has {size} bytes, more than {MOST_BYTES}")
        data: bytes = await self._stream.recv_data(size)
        return data
