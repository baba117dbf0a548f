"""The streams of a link as pipes of this process."""

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from benchflow_contracts.errors import SnapshotError
from benchflow_sandbox_core.fifo.streams import CONTROL, FifoStreams

from .connections import LinkConnections, OnAccepted
from .pipe_ends import InputEnd, OutputEnd
from .records import (
    ALL_ENDS,
    WINDOW,
    Frame,
    FrameKind,
    LinkProtocolError,
    credit,
    number_of,
)
from .session import Session


@dataclass(frozen=True, slots=True)
class StreamState:
    """The stream of one process at one instant."""

    number: int
    credit: int
    """Bytes of stdin that the link accepts."""
    closed: tuple[bool, ...]
    """The ends that the link, or this machine, has closed."""
    released: tuple[bool, ...]
    """The ends that the user of the process has closed."""
    out: bytes
    """Unread output."""
    err: bytes


@dataclass(frozen=True, slots=True)
class StreamsState:
    """The streams of a sandbox at one instant."""

    next: int
    control_credit: int
    processes: Mapping[str, StreamState]
    """By the ids of the processes."""
    others: tuple[int, ...]
    """Streams that end with a copy of the sandbox, such as those of doors."""
    accepted: int
    """The number of connections to doors that the link has reported."""


class _Stream:
    """The ends of one stream that a process of this machine would have."""

    def __init__(self, number: int, session: Session) -> None:
        self._number, self._session = number, session
        self._input: InputEnd | None = None
        self._outputs: dict[int, OutputEnd] = {}
        self._drained = asyncio.Event()
        self._flushed = asyncio.Event()

    @property
    def credit(self) -> int:
        """Bytes of stdin that the link accepts."""
        return WINDOW if self._input is None else self._input.credit

    def add(self, end: int, fd: int, allowed: int = WINDOW) -> None:
        """Use `fd` for an end."""
        os.set_blocking(fd, False)
        if end == 0:
            self._input = InputEnd(fd, allowed, lambda: self._session.room, self._send_input)
            self._input.check()
        else:
            self._outputs[end] = OutputEnd(
                fd,
                consumed=lambda size: self._session.send(credit(self._number, end, size)),
                broken=lambda: self._send(FrameKind.CLOSE, end),
                flushed=self._flushed.set,
            )

    def capture(self, streams: FifoStreams) -> StreamState:
        """Return the state of the stream, whose pipes nobody uses now.

        Raises:
            SnapshotError: A process has not read its input.
        """
        if count := streams.stdin.unread():
            raise SnapshotError(
                f"a process has not read {count} bytes of its input",
                hint="snapshot when it waits for input",
                retryable=True,
            )
        while True:
            streams.stdout.drain()
            streams.stderr.drain()
            if all(output.is_flushed for output in self._outputs.values()):
                break
            for output in self._outputs.values():
                output.flush()
        ends = [self._input, *(self._outputs.get(end) for end in (1, 2))]
        return StreamState(
            number=self._number,
            credit=self.credit,
            closed=tuple(end is None or end.is_closed for end in ends),
            released=tuple(end.closed for end in streams.ends),
            out=streams.stdout.buffered,
            err=streams.stderr.buffered,
        )

    def pay(self) -> None:
        """Give the link all the credit that it may have."""
        for output in self._outputs.values():
            output.pay()

    def close_ends(self, closed: tuple[bool, ...]) -> None:
        """Close ends here that are closed in the state of the stream."""
        if closed[0] and self._input is not None:
            self._input.close()
        for end, output in self._outputs.items():
            if closed[end]:
                output.close()

    def handle(self, frame: Frame) -> None:
        """Handle a frame of the link."""
        output = self._outputs.get(frame.end)
        match frame.kind:
            case FrameKind.DATA if output is not None:
                output.add(frame.payload)
            case FrameKind.END if output is not None:
                output.end()
            case FrameKind.CREDIT if self._input is not None and frame.end == 0:
                self._input.add_credit(number_of(frame))
            case FrameKind.BROKEN if self._input is not None and frame.end == 0:
                self._input.close()
            case FrameKind.DRAINED:
                self._drained.set()
            case _:
                raise LinkProtocolError(f"unexpected frame {frame.kind} for end {frame.end}")

    def check(self) -> None:
        """Continue to read input if there is room."""
        if self._input is not None:
            self._input.check()

    async def drain(self) -> None:
        """Wait until the pipes here took all that the pipes inside have now."""
        self._drained.clear()
        self._send(FrameKind.DRAIN, 0)
        await self._drained.wait()
        while not all(output.is_flushed for output in self._outputs.values()):
            self._flushed.clear()
            await self._flushed.wait()

    @property
    def is_closed(self) -> bool:
        """Whether every end is closed here. Ends that nobody uses are closed first."""
        for output in self._outputs.values():
            output.close_unread()
        ends = [self._input, *self._outputs.values()]
        return all(end is None or end.is_closed for end in ends)

    def close(self) -> None:
        """Close every end here, and end `drain`. Idempotent."""
        if self._input is not None:
            self._input.close()
        for output in self._outputs.values():
            output.close()
        self._drained.set()
        self._flushed.set()

    def _send_input(self, data: bytes) -> None:
        self._send(FrameKind.DATA if data else FrameKind.END, 0, data)

    def _send(self, kind: FrameKind, end: int, payload: bytes = b"") -> None:
        self._session.send(Frame(self._number, kind, end, payload))


class LinkStreams:
    """The streams of one sandbox. They are pipes here; the session carries their bytes."""

    def __init__(
        self, session: Session, on_accepted: OnAccepted, state: StreamsState | None = None
    ) -> None:
        self._session = session
        self._state = state
        self._streams: dict[int, _Stream] = {}
        self._ends: dict[int, tuple[int, int]] = {}
        """The stream and end of each descriptor of the sandbox's side."""
        accepted = 0 if state is None else state.accepted
        self._connections = LinkConnections(session, on_accepted, accepted)
        self._next = CONTROL + 1 if state is None else state.next
        self._unused = set[int]()
        """Streams that their user has closed, and a process here may still have open."""

    def streams(self) -> FifoStreams:
        """Create the pipes of a new stream.

        Raises:
            SandboxError: The session has ended.
        """
        if self._session.error is not None:
            raise self._session.error
        self._sweep()
        number, self._next = self._next, self._next + 1
        # Nobody waits for the pipes, but for the process that gets them.
        self._session.send(Frame(number, FrameKind.OPEN), gather=True)
        return self.open_stream(number)

    def open_stream(self, number: int) -> FifoStreams:
        """Open the pipes of a stream that the link has."""
        allowed = WINDOW
        if number == CONTROL and self._state is not None:
            allowed = self._state.control_credit
        streams = self._open(number, allowed)
        for end, fd in enumerate(streams.child):
            self._ends[fd] = (number, end)
        return streams

    def _open(self, number: int, allowed: int, out: bytes = b"", err: bytes = b"") -> FifoStreams:
        stream = self._streams[number] = _Stream(number, self._session)
        try:
            streams = FifoStreams(self, number, out, err)
        except BaseException:
            self.remove_unused(number)
            raise
        for end, fd in enumerate(streams.child):
            stream.add(end, os.dup(fd), allowed)
        return streams

    def capture(self, processes: Mapping[str, FifoStreams]) -> StreamsState:
        """Return the state of the streams. Nobody uses the pipes of `processes` meanwhile.

        Raises:
            SnapshotError: A process has not read its input.
        """
        states = {
            name: self._streams[streams.number].capture(streams)
            for name, streams in processes.items()
        }
        for stream in self._streams.values():
            stream.pay()  # the streams of a copy begin with whole windows
        known = {CONTROL, *(state.number for state in states.values())}
        others = [number for number in self._streams if number not in known]
        return StreamsState(
            next=self._next,
            control_credit=self._streams[CONTROL].credit,
            processes=states,
            others=(*others, *self._connections.numbers),
            accepted=self._connections.accepted,
        )

    def restore(self) -> dict[str, FifoStreams]:
        """Open new pipes for the processes of the state, and close its other streams inside."""
        restored = dict[str, FifoStreams]()
        if self._state is None:
            return restored
        for number in self._state.others:
            self._session.send(Frame(number, FrameKind.CLOSE, ALL_ENDS))
        for name, state in self._state.processes.items():
            streams = self._open(state.number, state.credit, state.out, state.err)
            restored[name] = streams
            streams.close_child()
            for end, released in zip(streams.ends, state.released, strict=True):
                if released:
                    end.close()
            self._streams[state.number].close_ends(state.closed)
        return restored

    def pair(self, name: str) -> tuple[int, int]:
        """Return the reading and the writing end of a new pipe."""
        del name
        return os.pipe()

    def stream_of(self, fds: tuple[int, int, int]) -> tuple[int, int]:
        """Return the stream of `fds`, and a bit mask of those that are its ends."""
        number = mask = 0
        for end, fd in enumerate(fds):
            entry = self._ends.get(fd)
            if entry is not None and entry[1] == end:
                number, mask = entry[0], mask | 1 << end
        return number, mask

    def forget(self, fds: list[int]) -> None:
        """Let the link close its copies of the ends of a process."""
        numbers = {self._ends.pop(fd)[0] for fd in fds if fd in self._ends}
        for number in numbers:
            self._session.send(Frame(number, FrameKind.RELEASE), gather=True)

    def remove_unused(self, number: int) -> None:
        """Close a stream inside, now or after no process here has an end of it open. Idempotent."""
        if number in self._streams:
            self._unused.add(number)
        self._sweep()

    def _sweep(self) -> None:
        for number in [each for each in self._unused if self._streams[each].is_closed]:
            self._unused.discard(number)
            self._streams.pop(number).close()
            self._session.send(Frame(number, FrameKind.CLOSE, ALL_ENDS), gather=True)

    async def drain(self, number: int) -> None:
        """Wait until the pipes of a stream here took all that its pipes inside have now."""
        stream = self._streams.get(number)
        if stream is not None:
            await stream.drain()

    def handle(self, frame: Frame) -> None:
        """Handle a frame of the link.

        Raises:
            LinkProtocolError: The frame is not allowed.
        """
        if self._connections.handle(frame):
            return
        if frame.stream >= self._next:
            raise LinkProtocolError(f"the link names stream {frame.stream}, which is not open")
        stream = self._streams.get(frame.stream)
        if stream is not None:  # or the frame crossed the end of the stream
            stream.handle(frame)
            if frame.stream in self._unused:
                self._sweep()

    def check(self) -> None:
        """Continue to read input after the session got room."""
        for stream in list(self._streams.values()):
            stream.check()
        self._connections.check()

    def close(self) -> None:
        """Close every stream here: processes of the sandbox cannot be reached any more."""
        self._unused.clear()
        while self._streams:
            _, stream = self._streams.popitem()
            with suppress(OSError):
                stream.close()
        self._connections.close()
