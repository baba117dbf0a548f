"""The running part of a remote sandbox: its session, its streams and its init."""

import asyncio
import errno
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self

from benchflow_contracts.errors import AccountError, SandboxError, SandboxLostError
from benchflow_sandbox_core.fifo.accounts import GuestAccounts
from benchflow_sandbox_core.fifo.init import FifoInit
from benchflow_sandbox_core.fifo.streams import CONTROL, FifoStreams
from benchflow_sandbox_native import InitError
from benchflow_sandbox_native.errors import reason_of

from .connections import OnAccepted, refuse
from .records import Frame, FrameKind, LinkProtocolError, number_of
from .session import Session, SessionState
from .streams import LinkStreams, StreamsState
from .transport import PROGRAM, Dial

_READY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class BoxState:
    """The host's side of a link at one instant. The link of a copy continues from it."""

    session: SessionState
    streams: StreamsState
    orders: int
    """Orders that the link has not answered."""
    shell: str


class RemoteBox:
    """The link to one sandbox, from its start to its end."""

    program = (PROGRAM, "guest")

    def __init__(
        self,
        dial: Dial,
        token: bytes,
        *,
        lost_after: float = 120.0,
        state: BoxState | None = None,
    ) -> None:
        self.session = Session(
            dial,
            token,
            on_frame=self._handle,
            on_room=self._has_room,
            on_end=self._on_end,
            lost_after=lost_after,
            state=None if state is None else state.session,
        )
        self.on_accepted: OnAccepted = refuse
        """Called with each connection inside to a port of the host."""
        self._lost_after = lost_after
        self.accounts = GuestAccounts()
        self.shell = "/bin/sh" if state is None else state.shell
        self._streams = LinkStreams(
            self.session, self._report_accepted, None if state is None else state.streams
        )
        self._init: FifoInit | None = None
        self._answers = deque[asyncio.Future[int]]()
        self.restored: Mapping[str, FifoStreams] = {}
        """The pipes of the processes of the state, by their ids."""

    @classmethod
    async def resume(cls, dial: Dial, state: BoxState, *, lost_after: float) -> Self:
        """Continue with the link in a copy of the sandbox. Its processes run on return.

        Raises:
            SandboxError: The link cannot be reached, or does not have this state.
        """
        box = cls(dial, state.session.token, lost_after=lost_after, state=state)
        loop = asyncio.get_running_loop()
        box._answers.extend(loop.create_future() for _ in range(state.orders))
        # Output may arrive with the first bytes of the link.
        box.restored = box._streams.restore()
        try:
            await box.start()
            await box.order(FrameKind.THAW)
        except BaseException:
            await box.aclose()
            raise
        return box

    @asynccontextmanager
    async def while_paused(self, processes: Mapping[str, FifoStreams]) -> AsyncGenerator[BoxState]:
        """Have no connection inside the block; yield the state at its beginning.

        A copy of the sandbox that is made inside the block continues from this state.
        """
        async with self.session.while_paused():
            streams = self._streams.capture(processes)
            yield BoxState(self.session.state, streams, len(self._answers), self.shell)

    async def start(self) -> None:
        """Connect, and wait until the init answers.

        Raises:
            SandboxError: The link cannot be reached, or its init does not answer.
        """
        await self.session.start()
        self._init = FifoInit(
            self._streams,
            # A call waits as long as the session may take to connect again.
            prompt_seconds=self._lost_after + _READY_SECONDS,
        )
        try:
            async with asyncio.timeout(_READY_SECONDS):
                await self._init.ping()
        except (InitError, TimeoutError) as error:
            await self.aclose()
            raise SandboxError(f"the init of the sandbox does not answer: {error}") from error
        self._init.confirm_open()

    @property
    def init(self) -> FifoInit:
        """The init, which starts processes; raise the error of the session after its end."""
        if self._init is None or self.session.error is not None:
            raise self.session.error or SandboxError("the link to the sandbox is not open")
        return self._init

    @property
    def closed(self) -> bool:
        """Whether the session has ended."""
        return self.session.error is not None

    @property
    def lost(self) -> SandboxError | None:
        """The reason why the sandbox cannot be reached any more, if it is lost."""
        error = self.session.error
        return error if isinstance(error, (SandboxLostError, AccountError)) else None

    def streams(self) -> FifoStreams:
        """Create the pipes of a new process."""
        return self._streams.streams()

    def stream_of(self, fds: tuple[int, int, int]) -> int:
        """Return the number of the stream of `fds`."""
        return self._streams.stream_of(fds)[0]

    async def drain(self, number: int) -> None:
        """Wait until the pipes of a stream here took all that its pipes inside have now."""
        await self._streams.drain(number)

    async def order(self, kind: FrameKind) -> None:
        """Kill, freeze or thaw the processes inside. It is done on return.

        Raises:
            SandboxError: It failed, or the session has ended.
        """
        if self.session.error is not None:
            raise self.session.error
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        self.session.send(Frame(CONTROL, kind))
        try:
            async with asyncio.timeout(self._lost_after + _READY_SECONDS):
                code = await answer
        except TimeoutError:
            # The answer of a later order could be the one that is missing.
            error = LinkProtocolError(f"the link did not answer an order to {kind.name.lower()}")
            self.session.fail(error)
            raise error from None
        if code == errno.EAGAIN:
            raise SandboxError(
                "processes of the sandbox start others faster than they can be stopped",
                caused_by="inside",
            )
        if code:
            raise SandboxError(f"{kind.name.lower()} of the sandbox: {reason_of(code)}")

    async def aclose(self) -> None:
        """End the session. Processes of the sandbox continue. Idempotent."""
        await self.session.aclose()
        if self._init is not None:
            self._init.close()

    def _report_accepted(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int
    ) -> None:
        self.on_accepted(reader, writer, port)

    def _has_room(self) -> None:
        self._streams.check()

    def _handle(self, frame: Frame) -> None:
        if frame.kind != FrameKind.ANSWER:
            self._streams.handle(frame)
            return
        if not self._answers:
            raise LinkProtocolError("the link answered an order that it did not get")
        code = number_of(frame)
        answer = self._answers.popleft()
        if not answer.done():
            answer.set_result(code)

    def _on_end(self, error: SandboxError) -> None:
        self._streams.close()
        while self._answers:
            answer = self._answers.popleft()
            if not answer.done():
                answer.set_exception(error)
