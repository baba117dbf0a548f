"""The session with the link of one sandbox, over connections that may be cut."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from benchflow_contracts.errors import AccountError, SandboxError, SandboxLostError

from .records import (
    MAX_UNCONFIRMED,
    Frame,
    FrameReader,
    LinkProtocolError,
    Record,
    RecordKind,
    RecordReader,
)
from .transport import Dial, Transport

_PING_SECONDS = 10.0
_SILENCE_SECONDS = 25.0
"""A connection without a byte for this time is cut: the pings should have been answered."""
_HELLO_SECONDS = 20.0
_FIRST_PAUSE, _MAX_PAUSE = 0.1, 5.0
_PIECE = (1 << 16) - Record.HEAD_SIZE
"""Bytes in one record that we send: an empty pipe takes the record at once."""
_CONFIRM_BYTES = 1 << 15
"""A confirmation of fewer bytes waits until other bytes or a ping are sent."""
_GATHER_SECONDS = 0.001
"""How long a frame that nobody waits for may wait for others, to be one write with them."""
_RESERVE = 1 << 14
"""Bytes of `MAX_UNCONFIRMED` that only short frames may use."""
_MOST_UNCONFIRMED = 1 << 24
"""A link that confirms nothing and sends on would otherwise use up the memory by its credit."""


@dataclass(frozen=True, slots=True)
class SessionState:
    """A session at one instant. A session with a copy of the sandbox continues from it."""

    token: bytes
    unconfirmed: bytes
    confirmed: int
    received: int
    partial: bytes
    """The beginning of the next frame."""


class Session:
    """Sends frames to the link and receives frames from it, each exactly once and in order.

    If a connection ends, the session opens another one and continues. It ends if no connection
    can be opened within `lost_after` seconds, if `dial` says that the sandbox is gone or that the
    account is refused, if the other side breaks the protocol, or by `aclose`.
    """

    def __init__(
        self,
        dial: Dial,
        token: bytes,
        *,
        on_frame: Callable[[Frame], None],
        on_room: Callable[[], None] = lambda: None,
        on_end: Callable[[SandboxError], None] = lambda _error: None,
        lost_after: float = 120.0,
        state: SessionState | None = None,
    ) -> None:
        self._dial = dial
        self._token = token
        self._on_frame, self._on_room, self._on_end = on_frame, on_room, on_end
        self._lost_after = lost_after
        self._unconfirmed = bytearray(b"" if state is None else state.unconfirmed)
        self._confirmed = 0 if state is None else state.confirmed
        """The number of bytes that the other side has."""
        self._sent = 0
        """The number of bytes that were written to the current connection."""
        self._received = 0 if state is None else state.received
        self._counted = 0
        """The number of received bytes that were confirmed."""
        self._frames = FrameReader(b"" if state is None else state.partial)
        self._records = RecordReader()
        """Of the current connection."""
        self._wake = asyncio.Event()
        self._gathering: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._error: SandboxError | None = None
        self.connections = 0
        """How many connections were opened."""

    @property
    def error(self) -> SandboxError | None:
        """The reason of the end; `None` while the session is open."""
        return self._error

    @property
    def room(self) -> int:
        """The number of bytes that may be sent now. A short frame is always accepted."""
        return max(0, MAX_UNCONFIRMED - _RESERVE - len(self._unconfirmed))

    def send(self, frame: Frame, *, gather: bool = False) -> None:
        """Queue a frame. A frame after the end of the session is dropped.

        With `gather`, the frame may wait 1 ms for other frames, to be one write with them.
        """
        if self._error is not None:
            return
        self._unconfirmed += frame.encode()
        if not gather:
            self._wake.set()
        elif self._gathering is None:
            loop = asyncio.get_running_loop()
            self._gathering = loop.call_later(_GATHER_SECONDS, self._end_gathering)

    def _end_gathering(self) -> None:
        self._gathering = None
        self._wake.set()

    def fail(self, error: SandboxError) -> None:
        """End the session: the other side does not do what it should."""
        self._end(error)
        if self._task is not None:
            self._task.cancel()

    async def start(self) -> None:
        """Open the first connection.

        Raises:
            SandboxError: The link cannot be reached within 20 s, or refused the token.
        """
        transport = await self._connect()
        self._task = asyncio.get_running_loop().create_task(self._run(transport))

    @property
    def state(self) -> SessionState:
        """The state at this instant. While the session is paused, the link cannot pass it."""
        partial, unconfirmed = self._frames.partial, bytes(self._unconfirmed)
        return SessionState(self._token, unconfirmed, self._confirmed, self._received, partial)

    @asynccontextmanager
    async def while_paused(self) -> AsyncGenerator[None]:
        """Have no connection inside the block. Frames that are sent meanwhile wait.

        Raises:
            SandboxError: The session has ended.
        """
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        try:
            if self._error is not None:
                raise self._error
            yield
        finally:
            if self._error is None:
                self._task = asyncio.get_running_loop().create_task(self._run(None))

    async def aclose(self) -> None:
        """End the session. Idempotent."""
        self._end(SandboxError("the link to the sandbox is closed"))
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _end(self, error: SandboxError) -> None:
        if self._error is None:
            self._error = error
            self._unconfirmed.clear()
            self._on_end(error)

    async def _run(self, transport: Transport | None) -> None:
        """Use connections until the session ends."""
        try:
            while True:
                if transport is not None:
                    await self._use(transport)
                transport = await self._reconnect()
        except SandboxError as error:
            self._end(error)
        except Exception as error:
            # Without an end, the callers would wait for ever.
            self._end(SandboxError(f"the link to the sandbox failed: {error!r}"))
            raise

    async def _reconnect(self) -> Transport:
        pause = _FIRST_PAUSE
        cause: Exception | None = None
        try:
            async with asyncio.timeout(self._lost_after):
                while True:
                    try:
                        return await self._connect()
                    except (LinkProtocolError, SandboxLostError, AccountError):
                        raise  # no later try can succeed
                    except (OSError, SandboxError) as error:
                        cause = error
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _MAX_PAUSE)
        except TimeoutError:
            raise SandboxLostError(
                f"the sandbox could not be reached for {self._lost_after:g} s: {cause}",
                hint="check the network between this machine and the sandbox's provider",
            ) from cause

    async def _connect(self) -> Transport:
        """Open a connection and continue where the last one was cut."""
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                transport = await self._dial()
                try:
                    await self._greet(transport)
                except BaseException:
                    await transport.aclose()
                    raise
        except (OSError, TimeoutError) as error:
            raise SandboxError(f"cannot reach the link of the sandbox: {error!r}") from error
        self.connections += 1
        return transport

    async def _greet(self, transport: Transport) -> None:
        hello = Record(RecordKind.HELLO, self._received, self._token)
        await transport.write(hello.encode())
        self._records = RecordReader()
        welcome = None
        while welcome is None:
            data = await transport.read()
            if not data:
                raise SandboxError("the link of the sandbox ended the connection at its beginning")
            self._records.add(data)
            welcome = self._records.take()
        if welcome.kind != RecordKind.WELCOME:
            raise LinkProtocolError(f"record {welcome.kind} instead of the link's welcome")
        self._confirm(welcome.offset)
        self._sent, self._counted = self._confirmed, self._received

    def _confirm(self, offset: int) -> None:
        if not self._confirmed <= offset <= self._confirmed + len(self._unconfirmed):
            raise LinkProtocolError(f"the link confirms byte {offset}, which was never sent")
        if offset > self._confirmed:
            del self._unconfirmed[: offset - self._confirmed]
            self._confirmed = offset
            self._on_room()

    async def _use(self, transport: Transport) -> None:
        """Read and write until the connection ends.

        Raises:
            LinkProtocolError: The other side broke the protocol.
        """
        self._wake.set()
        loop = asyncio.get_running_loop()
        tasks = [
            loop.create_task(self._read(transport)),
            loop.create_task(self._write(transport)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await transport.aclose()
        for task in tasks:
            error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, (OSError, SandboxError)):
                raise error
            if isinstance(error, LinkProtocolError):
                raise error

    async def _read(self, transport: Transport) -> None:
        while True:
            while (record := self._records.take()) is not None:
                self._receive(record)
            async with asyncio.timeout(_SILENCE_SECONDS):
                data = await transport.read()
            if not data:
                return
            self._records.add(data)

    def _receive(self, record: Record) -> None:
        match record.kind:
            case RecordKind.BYTES:
                self._receive_bytes(record)
            case RecordKind.CONFIRM:
                self._confirm(record.offset)
            case _:
                raise LinkProtocolError(f"the link sent a record of the unknown kind {record.kind}")

    def _receive_bytes(self, record: Record) -> None:
        if record.offset > self._received:
            raise LinkProtocolError(
                f"the link continues at byte {record.offset}, after byte {self._received}"
            )
        new = record.payload[self._received - record.offset :]
        self._received += len(new)
        if self._received - self._counted >= _CONFIRM_BYTES:
            self._wake.set()
        for frame in self._frames.feed(new):
            self._on_frame(frame)
        if len(self._unconfirmed) > _MOST_UNCONFIRMED:
            raise LinkProtocolError(f"the link did not confirm {len(self._unconfirmed)} bytes")

    async def _write(self, transport: Transport) -> None:
        loop = asyncio.get_running_loop()
        next_ping = loop.time() + _PING_SECONDS
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(next_ping):
                    await self._wake.wait()
            self._wake.clear()
            # Also in a busy session: confirmations may wait for a ping.
            is_ping = loop.time() >= next_ping
            if is_ping:
                next_ping = loop.time() + _PING_SECONDS
            while data := self._next_write(is_ping=is_ping):
                is_ping = False
                await transport.write(data)

    def _next_write(self, *, is_ping: bool) -> bytes:
        """Return the records of one write. A confirmation of few bytes needs another record."""
        start = self._sent - self._confirmed
        with memoryview(self._unconfirmed) as view:
            piece = bytes(view[start : start + _PIECE])
        records = [Record(RecordKind.PING, 0)] if is_ping else []
        new = self._received - self._counted
        if new >= _CONFIRM_BYTES or (new and (records or piece)):
            self._counted = self._received
            records.append(Record(RecordKind.CONFIRM, self._counted))
        if piece:
            records.append(Record(RecordKind.BYTES, self._sent, piece))
            self._sent += len(piece)
        return b"".join(record.encode() for record in records)
