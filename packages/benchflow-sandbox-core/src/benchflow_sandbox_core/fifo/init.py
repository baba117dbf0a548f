"""Calls to the init of a sandbox, over one pair of pipes."""

import asyncio
import errno
import os
import secrets
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from benchflow_contracts.errors import SandboxError
from benchflow_sandbox_native import InitError, protocol
from benchflow_sandbox_native import guest as frames

from benchflow_sandbox_core.gate import Gate
from benchflow_sandbox_core.shield import finish

from .streams import CONTROL, StreamDirectory

_REST_SECONDS = 30.0
_PROMPT_SECONDS = 60.0
"""Timeout of short calls. Root inside can read the pipe and swallow a call."""
_CHUNK = frames.ANSWER_SIZE * 1024


class FifoInit:
    """Sends frames and gives each response to its caller.

    `on_connection` is called with each connection that waits inside, and with the index of
    the guest's port. A short call without an answer for `prompt_seconds`, by default a minute, ends
    the connection.
    """

    def __init__(
        self,
        fifos: StreamDirectory,
        on_connection: Callable[[int, int], None] = lambda _connection, _index: None,
        *,
        prompt_seconds: float | None = None,
    ) -> None:
        self._fifos = fifos
        self._pipes = fifos.open_stream(CONTROL)
        self._on_connection = on_connection
        self._prompt_seconds = prompt_seconds or _PROMPT_SECONDS
        # A restored guest may still send a response to a call of its predecessor.
        self._next = (secrets.randbits(31) << 32) + 1
        self._pending: dict[int, asyncio.Future[int]] = {}
        self._operations: dict[int, str] = {}
        self._write_lock = asyncio.Lock()
        self._gate = Gate()
        self._buffer = bytearray()
        self._fd = self._pipes.stdout.detach()
        os.set_blocking(self._fd, False)
        asyncio.get_running_loop().add_reader(self._fd, self._read)

    @property
    def ended(self) -> bool:
        """Whether the connection has ended."""
        return self._fd < 0

    def confirm_open(self) -> None:
        """Close the guest's ends here, after the guest has opened them.

        Then the end of the pipes means that the guest is dead.
        """
        self._pipes.close_child()

    async def ping(self) -> None:
        """Wait until the guest has finished all earlier calls."""
        await self._ask(protocol.PING, b"", "ping")

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        uid: int,
        gid: int,
        groups: Sequence[int] = (),
        rlimits: Mapping[int, tuple[int, int]] = {},
        fds: tuple[int, int, int],
    ) -> int:
        """Start a program in a session of its own; return its number.

        `fds` that are not pipes of the sandbox become /dev/null.
        """
        request = protocol.SpawnRequest(
            argv, env=env, cwd=cwd, uid=uid, gid=gid, groups=groups, rlimits=rlimits
        )
        body = frames.encode_guest_spawn(request, *self._fifos.stream_of(fds))
        async with self._gate.while_open():
            return await self._spawn(body, f"spawn of {argv[0]!r}")

    async def _spawn(self, body: bytes, operation: str) -> int:
        number, answer = self._expect(operation)
        try:
            await self._send(number, protocol.SPAWN, body, operation)
            return await answer
        except BaseException:
            if not answer.done() or answer.cancelled():
                await finish(self._abandon(number))
            raise
        finally:
            self._forget(number)

    async def _abandon(self, number: int) -> None:
        """Kill a process whose caller was cancelled."""
        # The future was cancelled with its caller; a response may still come.
        answer = self._pending[number] = asyncio.get_running_loop().create_future()
        with suppress(InitError):
            await self._ask(frames.ABANDON, frames.encode_abandon(number), "abandon")
            if answer.done() and answer.exception() is None:
                pid = answer.result()
                body = protocol.encode_kill(pid, signal.SIGKILL, group=True)
                await self._ask(protocol.KILL, body, f"kill of {pid}")

    async def wait(self, pid: int) -> int:
        """Return the exit code as a shell reports it."""
        await self._gate.wait_open()
        operation = f"wait for {pid}"
        code = await self._ask(protocol.WAIT, protocol.encode_wait(pid), operation, prompt=False)
        with suppress(InitError):
            await self._send(0, frames.FORGET, protocol.encode_wait(pid), operation)
        return code

    async def kill(self, pid: int, signal: int, *, group: bool = True) -> None:
        """Send a signal to a process or to its group."""
        async with self._gate.while_open():
            body = protocol.encode_kill(pid, signal, group=group)
            await self._ask(protocol.KILL, body, f"kill of {pid}")

    async def accounts(self) -> int:
        """Return a number that changes when /etc/passwd or /etc/group changes."""
        async with self._gate.while_open():
            return await self._ask(frames.ACCOUNTS, b"", "read of the users")

    async def attach(self, connection: int, stream: int) -> None:
        """Attach a waiting connection inside to a stream."""
        async with self._gate.while_open():
            await self._ask(frames.ATTACH, frames.encode_attach(connection, stream), "attach")

    async def hang_up(self) -> None:
        """Close every waiting connection inside."""
        await self._send(0, frames.HANG_UP, b"", "hang up")

    async def rest(self) -> None:
        """Finish every call except `wait`; new calls wait until `resume`.

        Raises:
            SandboxError: Init does not respond. Calls are allowed again.
        """
        self._gate.close()
        try:
            async with asyncio.timeout(_REST_SECONDS):
                await self._gate.wait_empty()
                with suppress(InitError):  # a dead init has no calls
                    await self.ping()
        except TimeoutError as error:
            self._gate.open()
            raise SandboxError("calls to the sandbox's init do not end", retryable=True) from error
        except BaseException:
            self._gate.open()
            raise

    def resume(self) -> None:
        """Allow calls again."""
        self._gate.open()

    def close(self) -> None:
        """Close the pipes. Calls that wait raise `InitError`. Idempotent."""
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
        self._pipes.close()
        for number, answer in self._pending.items():
            if not answer.done():
                operation = self._operations.get(number, "call")
                answer.set_exception(InitError(errno.ECONNRESET, "connection", operation))

    def _expect(self, operation: str) -> "tuple[int, asyncio.Future[int]]":
        if self._fd < 0:
            raise InitError(errno.ECONNREFUSED, "connection", operation)
        number, self._next = self._next, self._next + 1
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._pending[number], self._operations[number] = answer, operation
        return number, answer

    def _forget(self, number: int) -> None:
        answer = self._pending.pop(number, None)
        self._operations.pop(number, None)
        if answer is not None and answer.done() and not answer.cancelled():
            answer.exception()

    async def _ask(self, code: int, body: bytes, operation: str, *, prompt: bool = True) -> int:
        number, answer = self._expect(operation)
        try:
            async with asyncio.timeout(self._prompt_seconds if prompt else None):
                await self._send(number, code, body, operation)
                return await answer
        except TimeoutError as error:
            # Later responses cannot be trusted.
            self.close()
            raise InitError(errno.ETIMEDOUT, "connection", operation) from error
        finally:
            self._forget(number)

    async def _send(self, number: int, code: int, body: bytes, operation: str) -> None:
        frame = frames.encode_frame(number, code, body, operation)
        async with self._write_lock:
            try:
                # Half a frame would break all later calls.
                await finish(self._pipes.stdin.write(frame))
            except SandboxError as error:
                raise InitError(errno.ECONNRESET, "connection", operation) from error

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            self.close()
            return
        self._buffer += data
        size = frames.ANSWER_SIZE
        while len(self._buffer) >= size:
            answer = frames.GuestAnswer.decode(bytes(self._buffer[:size]))
            del self._buffer[:size]
            if answer.id == 0:
                self._on_connection(answer.value, answer.which)
            else:
                self._deliver(answer)

    def _deliver(self, answer: frames.GuestAnswer) -> None:
        waiting = self._pending.get(answer.id)
        if waiting is None or waiting.done():
            return
        failure = answer.failure(self._operations.get(answer.id, "call"))
        if failure is None:
            waiting.set_result(answer.value)
        else:
            waiting.set_exception(failure)
