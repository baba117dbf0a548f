"""Connections from inside to the doors of a sandbox, without pipes."""

import asyncio
from collections.abc import Callable

from benchflow_sandbox_core.relay.head import MAX_HEAD

from .records import (
    ALL_ENDS,
    FIRST_ACCEPTED,
    MAX_ACCEPTED,
    MAX_PAYLOAD,
    WINDOW,
    Frame,
    FrameKind,
    LinkProtocolError,
    credit,
    number_of,
)
from .session import Session

_HIGH, _LOW = 1 << 16, 1 << 14
"""A writer waits above so many bytes that have no credit, and continues below so many."""
OnAccepted = Callable[[asyncio.StreamReader, asyncio.StreamWriter, int], None]
"""Called with a connection from inside to a door, and the index of the door."""


def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, door: int) -> None:
    """Close a connection that nobody serves."""
    del reader, door
    writer.transport.abort()


class LinkConnection(asyncio.Transport):
    """A stream that the link opened for a connection. `reader` and `writer` are its ends here.

    The connection calls `on_closed` once. Before that, it sends the link the end of the stream.
    """

    def __init__(self, number: int, session: Session, on_closed: Callable[[int], object]) -> None:
        super().__init__()
        self._number, self._session, self._on_closed = number, session, on_closed
        self._buffer = bytearray()
        self._credit = self._room = WINDOW
        self._owed = 0
        """Received bytes for which the link has no credit yet."""
        self._is_reading, self._is_writing = True, True
        self._has_ended = self._is_closing = self._is_closed = False
        self.reader = asyncio.StreamReader(limit=MAX_HEAD)
        self._protocol = asyncio.StreamReaderProtocol(self.reader)
        self._protocol.connection_made(self)
        loop = asyncio.get_running_loop()
        self.writer = asyncio.StreamWriter(self, self._protocol, self.reader, loop)

    def handle(self, frame: Frame) -> None:
        """Handle a frame of the link.

        Raises:
            LinkProtocolError: The frame is not allowed.
        """
        match frame.kind:
            case FrameKind.DATA if frame.end == 1 and not self._has_ended:
                self._receive(frame.payload)
            case FrameKind.END if frame.end == 1 and not self._has_ended:
                self._has_ended = True
                self._protocol.eof_received()
            case FrameKind.CREDIT if frame.end == 0:
                self._credit += number_of(frame)
                if self._credit > WINDOW:
                    raise LinkProtocolError("the link gave more credit than it has")
                self.check()
            case FrameKind.BROKEN if frame.end == 0:
                self.fail(BrokenPipeError("the connection inside is closed"))
            case _:
                raise LinkProtocolError(f"unexpected frame {frame.kind} for end {frame.end}")

    def _receive(self, data: bytes) -> None:
        self._room -= len(data)
        if self._room < 0:
            raise LinkProtocolError("the link sent more bytes of a connection than it may")
        self._owed += len(data)
        self._protocol.data_received(data)
        self._pay()

    def _pay(self) -> None:
        # A reader that reads slowly pauses this transport, and then keeps at most a window more.
        if self._is_reading and self._owed >= WINDOW // 4:
            self._session.send(credit(self._number, 1, self._owed))
            self._room += self._owed
            self._owed = 0

    def check(self) -> None:
        """Send what the link accepts now."""
        while size := min(len(self._buffer), self._credit, MAX_PAYLOAD):
            if self._session.room <= MAX_PAYLOAD:
                break
            self._credit -= size
            with memoryview(self._buffer) as view:
                payload = bytes(view[:size])
            del self._buffer[:size]
            self._session.send(Frame(self._number, FrameKind.DATA, 0, payload))
        if not self._is_writing and len(self._buffer) <= _LOW:
            self._is_writing = True
            self._protocol.resume_writing()
        if self._is_closing and not self._buffer:
            self.fail(None)

    def fail(self, error: OSError | None) -> None:
        """End the connection at once. Idempotent."""
        if self._is_closed:
            return
        self._is_closing = self._is_closed = True
        self._buffer.clear()
        self._session.send(Frame(self._number, FrameKind.CLOSE, ALL_ENDS), gather=True)
        self._on_closed(self._number)
        asyncio.get_running_loop().call_soon(self._protocol.connection_lost, error)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send `data`, now or when the link accepts more. Dropped after the end."""
        if self._is_closing:
            return
        self._buffer += data
        self.check()
        if self._is_writing and len(self._buffer) > _HIGH:
            self._is_writing = False
            self._protocol.pause_writing()

    def can_write_eof(self) -> bool:
        """Return `False`: an answer ends with its connection."""
        return False

    def pause_reading(self) -> None:
        """Give no credit from now on."""
        self._is_reading = False

    def resume_reading(self) -> None:
        """Give credit again."""
        self._is_reading = True
        if not self._is_closing:
            self._pay()

    def is_closing(self) -> bool:
        """Return whether the connection ends."""
        return self._is_closing

    def close(self) -> None:
        """End the connection after the bytes that wait. Idempotent."""
        self._is_closing = True
        self.check()

    def abort(self) -> None:
        """End the connection at once. Idempotent."""
        self.fail(None)


class LinkConnections:
    """The open connections from inside to the doors of one sandbox."""

    def __init__(self, session: Session, on_accepted: OnAccepted, accepted: int) -> None:
        self._session, self._on_accepted = session, on_accepted
        self._open: dict[int, LinkConnection] = {}
        self.accepted = accepted
        """The number of connections that the link has reported."""

    @property
    def numbers(self) -> list[int]:
        """The streams of the open connections."""
        return list(self._open)

    def handle(self, frame: Frame) -> bool:
        """Handle a frame for a connection; return `False` for a frame of another stream.

        Raises:
            LinkProtocolError: The frame is not allowed.
        """
        if frame.kind == FrameKind.ACCEPTED:
            self._accept(frame)
            return True
        if not FIRST_ACCEPTED <= frame.stream < FIRST_ACCEPTED + self.accepted:
            return False
        connection = self._open.get(frame.stream)
        if connection is not None:  # or the frame crossed the end of the connection
            connection.handle(frame)
        return True

    def _accept(self, frame: Frame) -> None:
        number = FIRST_ACCEPTED + self.accepted
        if frame.stream != number or len(self._open) >= MAX_ACCEPTED:
            raise LinkProtocolError(f"the link may not accept a connection as {frame.stream}")
        self.accepted += 1
        connection = LinkConnection(number, self._session, self._open.pop)
        self._open[number] = connection
        self._on_accepted(connection.reader, connection.writer, frame.end)

    def check(self) -> None:
        """Continue to send after the session got room."""
        for connection in list(self._open.values()):
            connection.check()

    def close(self) -> None:
        """End every connection."""
        for connection in list(self._open.values()):
            connection.fail(ConnectionResetError("the link to the sandbox ended"))
