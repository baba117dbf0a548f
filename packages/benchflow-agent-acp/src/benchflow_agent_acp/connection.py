"""One end of a JSON-RPC conversation with a hostile peer, over a process's pipes."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from benchflow_contracts import AgentError, AgentProtocolError, Process, SandboxError

from .failures import AgentReplyError, first_failure
from .framing import as_object, is_noise, parse_message, split_lines
from .limits import WireLimits
from .state import ConnectionState, IncomingRequest, RequestId
from .stderr import StderrLog
from .wirelog import Direction, WireLog, WireRecord

METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602

RequestHandler = Callable[[IncomingRequest], Awaitable[None]]
Observer = Callable[[WireRecord], None]

_EXIT_WAIT_SEC = 2.0
_ID_CHARS = 128
_QUIET_TURNS = 20
"""Of the event loop. A reader may hold for some of them what it took from a pipe."""


class Connection:
    """Calls an agent and serves its requests.

    Pipes are read only while a call waits for its response: an idle connection has
    no task, so that its whole state is `state`, which a fork can copy. A second
    `Connection` over another process goes on from such a copy. The operating
    system's pipe buffers hold what an agent says between calls.

    Whatever the peer does, memory stays within `limits`, and a breach kills the
    process group before `AgentProtocolError` is raised.
    """

    def __init__(
        self,
        process: Process,
        *,
        state: ConnectionState | None = None,
        log: WireLog | None = None,
        stderr: StderrLog | None = None,
        limits: WireLimits | None = None,
        name: str = "agent",
    ) -> None:
        self.state = state or ConnectionState()
        self.limits = limits or WireLimits()
        self._process = process
        self._log = log or WireLog(None, max_bytes=0)
        self._stderr = stderr or StderrLog(None, max_bytes=0)
        self._name = name
        self._handler: RequestHandler | None = None
        self._observer: Observer | None = None
        self._alive: Callable[[], None] = _nothing
        self._results: dict[int, dict[str, Any]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._draining: asyncio.Task[None] | None = None
        self._served: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()
        self._received = 0
        self._pumping = False
        self._over: str | None = None

    def on_request(self, handler: RequestHandler) -> None:
        """Let `handler` serve the agent's requests; it must `reply` or `refuse`."""
        self._handler = handler

    def on_record(self, observer: Observer) -> None:
        """Call `observer` with each message, in wire order; it must not block."""
        self._observer = observer

    def on_life(self, alive: Callable[[], None]) -> None:
        """Call `alive` at each sign of life of the agent."""
        self._alive = alive

    async def call(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and wait for its result. The caller sets the timeout.

        Raises:
            AgentReplyError: The agent answered with an error.
            AgentProtocolError: The agent broke the protocol; it is dead.
            AgentError: The agent ended.
        """
        return await self.finish(await self.start(method, params))

    async def start(self, method: str, params: Mapping[str, Any]) -> int:
        """Send a request and return its id."""
        request_id = self.state.next_id
        self.state.next_id += 1
        self.state.calls[request_id] = method
        await self._send({"id": request_id, "method": method, "params": params})
        return request_id

    async def finish(self, request_id: int) -> dict[str, Any]:
        """Wait for the response to a request that this state once sent."""
        method = self.state.calls.get(request_id, "")
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                for request in list(self.state.requests.values()):
                    self._serve(request)
                self._draining = tasks.create_task(self._stderr.drain(self._process.stderr))
                response = await self._pump(request_id)
                self._draining.cancel()
                await self._drop_served()
        except BaseExceptionGroup as failures:
            raise first_failure(failures) from None
        finally:
            self._tasks = self._draining = None
        if "error" in response:
            raise AgentReplyError.of(self._name, method, response["error"])
        return as_object(response["result"])

    async def drain(self) -> None:
        """Take in everything that the agent has written. Ends while it is frozen.

        Requests that arrive outside of a call wait for the next `finish`. A frozen
        agent cannot be killed, so that a breach leaves this to `aclose`.

        Raises:
            AgentProtocolError: The agent broke the protocol; the connection is over.
        """
        quiet = 0
        while self._over is None and quiet < _QUIET_TURNS:
            quiet = 0 if self._process.stdout.waiting() else quiet + 1
            if self._pumping:
                await asyncio.sleep(0)
            elif quiet == 0:
                await self._take_some()

    async def _take_some(self) -> None:
        try:
            self._take(await self._process.stdout.read())
        except AgentProtocolError as error:
            self._over = str(error)
            raise

    @property
    def process_id(self) -> str:
        """The process at the other end, as its sandbox knows it."""
        return self._process.id

    @property
    def over(self) -> str | None:
        """Why nothing more can be said, if so."""
        return self._over

    @property
    def settled(self) -> bool:
        """Whether nothing is half said: no write under way, no response untaken."""
        return not self._results and not self._writing.locked()

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification."""
        await self._send({"method": method, "params": params})

    async def reply(self, request: IncomingRequest, result: Mapping[str, Any]) -> None:
        """Answer a request of the agent, unless that was done or it no longer waits."""
        if self.state.requests.pop(request.id, None) is None:
            return
        await self._send({"id": request.id, "result": result})

    async def refuse(self, request_id: RequestId, code: int, message: str) -> None:
        """Answer a request of the agent with an error."""
        self.state.requests.pop(request_id, None)
        await self._send({"id": request_id, "error": {"code": code, "message": message}})

    async def cancel_call(
        self, request_id: int, params: Mapping[str, Any], *, grace: float
    ) -> bool:
        """Ask the agent to end a turn; return whether it did so within `grace` seconds."""
        try:
            async with asyncio.timeout(grace):
                await self.notify("session/cancel", params)
                await self.finish(request_id)
        except AgentReplyError:
            return True
        except (TimeoutError, AgentError):
            return False
        return True

    def end(self, reason: str) -> None:
        """Write into the log that nothing more will come of the running turn."""
        self._record("end", json.dumps({"reason": reason}).encode(), {"reason": reason})

    async def aclose(self, reason: str = "closed") -> None:
        """Kill the process group and close the logs. Idempotent."""
        self._over = self._over or reason
        await self._process.aclose()
        self._log.close()
        self._stderr.close()

    async def _send(self, body: Mapping[str, Any]) -> None:
        if self._over is not None:
            raise AgentError(f"the session with agent {self._name!r} is over: {self._over}")
        message = {"jsonrpc": "2.0", **body}
        raw = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
        async with self._writing:
            self._record("out", raw, message)
            try:
                await self._process.stdin.write(raw + b"\n")
            except SandboxError as error:
                raise await self._ended() from error

    async def _pump(self, request_id: int) -> dict[str, Any]:
        self._received = 0
        self._pumping = True
        try:
            while request_id not in self._results:
                chunk = await self._process.stdout.read()
                if not chunk:
                    raise await self._ended()
                self._take(chunk)
                # A flooding agent must not starve our timers and handlers.
                await asyncio.sleep(0)
        except AgentProtocolError as error:
            self._over = str(error)
            for task in self._served:
                task.cancel()
            await self._process.kill()
            raise
        finally:
            self._pumping = False
        return self._results.pop(request_id)

    def _take(self, chunk: bytes) -> None:
        self._alive()
        self._received += len(chunk)
        if self._received > self.limits.turn_bytes:
            raise AgentProtocolError(
                f"the agent sent more than {self.limits.turn_bytes} bytes within one call"
            )
        for line in split_lines(self.state.buffer, chunk, limit=self.limits.line_bytes):
            if not line.strip():
                continue
            if is_noise(line):
                self._note_noise(line)
            else:
                self._dispatch(line, parse_message(line, max_depth=self.limits.json_depth))

    def _note_noise(self, line: bytes) -> None:
        self.state.noise_lines += 1
        if self.state.noise_lines > self.limits.noise_lines:
            raise AgentProtocolError(
                f"the agent wrote more than {self.limits.noise_lines} lines that are no messages"
            )
        entry = {"text": line[:500].decode("utf-8", "replace")}
        self._record("noise", json.dumps(entry).encode(), entry)

    def _record(self, direction: Direction, raw: bytes, message: dict[str, Any]) -> None:
        at = self._log.write(direction, raw)
        if self._observer is not None:
            self._observer(WireRecord(at, direction, message))

    def _dispatch(self, line: bytes, message: dict[str, Any]) -> None:
        self._record("in", line, message)
        if "method" in message:
            if "id" in message:
                self._admit(message)
        elif "id" in message and ("result" in message or "error" in message):
            self._settle(message)
        else:
            raise AgentProtocolError("the agent sent an object that is no JSON-RPC message")

    def _settle(self, message: dict[str, Any]) -> None:
        key = message["id"]
        if type(key) is int and self.state.calls.pop(key, None) is not None:
            self._results[key] = message
        else:
            self.state.strays += 1

    def _admit(self, message: dict[str, Any]) -> None:
        request = _incoming(message)
        if request.id in self.state.requests:
            self.state.strays += 1
            return
        if len(self.state.requests) >= self.limits.pending_requests:
            raise AgentProtocolError(
                f"the agent has more than {self.limits.pending_requests} requests open"
            )
        self.state.requests[request.id] = request
        self._serve(request)

    def _serve(self, request: IncomingRequest) -> None:
        if self._tasks is None:
            return  # read by drain(): finish() serves it
        handler = self._handler or self._refuse_unknown
        task = self._tasks.create_task(_run(handler, request))
        self._served.add(task)
        task.add_done_callback(self._served.discard)

    async def _drop_served(self) -> None:
        """Forget the requests that the agent itself no longer waits for.

        The lock makes sure that no reply is cut in the middle.
        """
        async with self._writing:
            for task in self._served:
                task.cancel()
            self.state.requests.clear()

    async def _refuse_unknown(self, request: IncomingRequest) -> None:
        await self.refuse(request.id, METHOD_NOT_FOUND, f"no method {request.method!r:.100}")

    async def _ended(self) -> AgentError:
        """Say how the agent ended. Kills what is left of it."""
        try:
            async with asyncio.timeout(_EXIT_WAIT_SEC):
                code: int | None = await self._process.wait()
        except TimeoutError:
            code = None
        await self._process.kill()
        if self._draining is not None:
            # A process outside of the group may hold the pipe open, so not for long.
            await asyncio.wait({self._draining}, timeout=_EXIT_WAIT_SEC)
        how = "closed its output" if code is None else f"ended with exit code {code}"
        self._over = f"agent {self._name!r} {how}"
        tail = self._stderr.last_lines()
        return AgentError(self._over + (f"; its last words:\n{tail}" if tail else ""))


async def _run(handler: RequestHandler, request: IncomingRequest) -> None:
    await handler(request)


def _nothing() -> None:
    """Stand in for an absent callback."""


def _incoming(message: dict[str, Any]) -> IncomingRequest:
    key, method = message["id"], message["method"]
    if type(key) not in (int, str) or (isinstance(key, str) and len(key) > _ID_CHARS):
        raise AgentProtocolError("the agent sent a request id that is no short string or integer")
    if not isinstance(method, str):
        raise AgentProtocolError("the agent sent a request whose method is no string")
    return IncomingRequest(key, method, as_object(message.get("params")))
