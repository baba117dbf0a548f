"""The client end of a JSON-RPC connection to a hostile peer, over a process's pipes."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from benchflow_contracts import AgentError, AgentProtocolError, Process, SandboxError
from benchflow_contracts.pausing import running_timeout

from .framing import as_object, is_noise, parse_message, split_lines
from .limits import WireLimits
from .logs import Direction, StderrLog, WireLog, WireRecord
from .state import ConnectionState, IncomingRequest, RequestId

METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602

RequestHandler = Callable[[IncomingRequest], Awaitable[None]]
Observer = Callable[[WireRecord], None]

_EXIT_WAIT_SEC = 2.0
_ID_CHARS = 128
_QUIET_TURNS = 20
"""Turns of the event loop. A reader may hold bytes of the pipe for some turns."""


class AgentReplyError(AgentError):
    """The agent answered a request with a JSON-RPC error. The connection stays open.

    Attributes:
        code: The JSON-RPC code; 0 if the agent sent none.
    """

    code: int = 0

    @classmethod
    def from_error(cls, agent: str, method: str, error: object) -> "AgentReplyError":
        """Build the error from the `error` member of a response, which may be any value."""
        body = as_object(error) or {"message": error}
        detail = str(body.get("message"))[:500]
        if body.get("data") is not None:
            detail += f" ({str(body['data'])[:500]})"
        failure = cls(f"agent {agent!r} refused {method!r}: {detail}")
        code = body.get("code")
        failure.code = code if isinstance(code, int) else 0
        return failure


class Connection:
    """Calls an agent and serves its requests.

    The pipes are read only while a call waits for its response. An idle connection has no task,
    so `state` is its whole state, and a fork can copy it. Another `Connection` can continue from
    the copy with another process. Between calls, the pipe buffers of the operating system hold
    the agent's output.

    Memory stays within `limits`, whatever the peer does. If the peer exceeds a limit, its process
    group is dead before `AgentProtocolError` is raised.
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
        self._on_activity: Callable[[], None] = _ignore
        self._results: dict[int, dict[str, Any]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._stderr_task: asyncio.Task[None] | None = None
        self._handler_tasks: set[asyncio.Task[None]] = set()
        self._write_lock = asyncio.Lock()
        self._received = 0
        self._reading = False
        self._closed_reason: str | None = None

    def on_request(self, handler: RequestHandler) -> None:
        """Set the handler of the agent's requests. The handler must `reply` or `refuse`."""
        self._handler = handler

    def on_record(self, observer: Observer) -> None:
        """Call `observer` with each message, in wire order. The observer must not block."""
        self._observer = observer

    def on_activity(self, callback: Callable[[], None]) -> None:
        """Call `callback` each time the agent sends bytes."""
        self._on_activity = callback

    async def call(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and wait for its result. The caller sets the timeout.

        Raises:
            AgentReplyError: The agent answered with an error.
            AgentProtocolError: The agent broke the protocol; its processes are dead.
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
        """Wait for the response to an earlier request of this state."""
        method = self.state.calls.get(request_id, "")
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                for request in list(self.state.requests.values()):
                    self._serve(request)
                self._stderr_task = tasks.create_task(self._stderr.drain(self._process.stderr))
                response = await self._read_until(request_id)
                self._stderr_task.cancel()
                await self._cancel_handlers()
        except BaseExceptionGroup as failures:
            first = _first_failure(failures)
            raise first from first.__cause__  # `blame` reads the cause
        finally:
            self._tasks = self._stderr_task = None
        if "error" in response:
            raise AgentReplyError.from_error(self._name, method, response["error"])
        return as_object(response["result"])

    async def drain(self) -> None:
        """Read everything that a frozen agent has written.

        Requests that arrive outside of a call wait for the next `finish`. A frozen agent cannot be
        killed, so `aclose` kills an agent that exceeds a limit here.

        Raises:
            AgentProtocolError: The agent broke the protocol; the connection is closed.
        """
        quiet = 0
        while self._closed_reason is None and quiet < _QUIET_TURNS:
            quiet = 0 if self._process.stdout.waiting() else quiet + 1
            if self._reading:
                await asyncio.sleep(0)
            elif quiet == 0:
                await self._read_once()

    async def _read_once(self) -> None:
        try:
            self._receive(await self._process.stdout.read())
        except AgentProtocolError as error:
            self._closed_reason = str(error)
            raise

    @property
    def process_id(self) -> str:
        """The sandbox's id of the process at the other end."""
        return self._process.id

    @property
    def closed_reason(self) -> str | None:
        """The reason that the connection is closed, or `None` if it is open."""
        return self._closed_reason

    @property
    def is_settled(self) -> bool:
        """Whether no write is in progress and no response waits for its call."""
        return not self._results and not self._write_lock.locked()

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification."""
        await self._send({"method": method, "params": params})

    async def reply(self, request: IncomingRequest, result: Mapping[str, Any]) -> None:
        """Answer a request of the agent. Do nothing if the request no longer waits."""
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
        """Ask the agent to end a turn; return whether the turn ended within `grace` seconds."""
        try:
            async with running_timeout(grace):
                await self.notify("session/cancel", params)
                await self.finish(request_id)
        except AgentReplyError:
            return True
        except (TimeoutError, AgentError):
            return False
        return True

    def end_step(self, reason: str) -> None:
        """Write a `step` record into the log: the open step of the running turn ends here."""
        self._record("step", json.dumps({"reason": reason}).encode(), {"reason": reason})

    def end(self, reason: str) -> None:
        """Write an `end` record into the log: the running turn has no further messages."""
        self._record("end", json.dumps({"reason": reason}).encode(), {"reason": reason})

    async def aclose(self, reason: str = "closed") -> None:
        """Kill the process group and close the logs. Idempotent."""
        self._closed_reason = self._closed_reason or reason
        await self._process.aclose()
        self._log.close()
        self._stderr.close()

    async def _send(self, body: Mapping[str, Any]) -> None:
        if self._closed_reason is not None:
            raise AgentError(
                f"the session with agent {self._name!r} has ended: {self._closed_reason}"
            )
        message = {"jsonrpc": "2.0", **body}
        raw = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
        async with self._write_lock:
            self._record("out", raw, message)
            try:
                await self._process.stdin.write(raw + b"\n")
            except SandboxError as error:
                raise await self._exit_error() from error

    async def _read_until(self, request_id: int) -> dict[str, Any]:
        self._received = 0
        self._reading = True
        try:
            while request_id not in self._results:
                chunk = await self._process.stdout.read()
                if not chunk:
                    raise await self._exit_error()
                self._receive(chunk)
                # A flooding agent must not starve our timers and handlers.
                await asyncio.sleep(0)
        except AgentProtocolError as error:
            self._closed_reason = str(error)
            for task in self._handler_tasks:
                task.cancel()
            await self._process.kill()
            raise
        finally:
            self._reading = False
        return self._results.pop(request_id)

    def _receive(self, chunk: bytes) -> None:
        self._on_activity()
        self._received += len(chunk)
        if self._received > self.limits.turn_bytes:
            raise AgentProtocolError(
                f"the agent sent more than {self.limits.turn_bytes} bytes within one call"
            )
        for line in split_lines(self.state.buffer, chunk, limit=self.limits.line_bytes):
            if not line.strip():
                continue
            if is_noise(line):
                self._record_noise(line)
            else:
                self._dispatch(line, parse_message(line, max_depth=self.limits.json_depth))

    def _record_noise(self, line: bytes) -> None:
        self.state.noise_lines += 1
        if self.state.noise_lines > self.limits.noise_lines:
            raise AgentProtocolError(
                f"the agent wrote more than {self.limits.noise_lines} lines that are not messages"
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
                self._accept(message)
        elif "id" in message and ("result" in message or "error" in message):
            self._store_result(message)
        else:
            raise AgentProtocolError("the agent sent an object that is not a JSON-RPC message")

    def _store_result(self, message: dict[str, Any]) -> None:
        key = message["id"]
        if type(key) is int and self.state.calls.pop(key, None) is not None:
            self._results[key] = message
        else:
            self.state.strays += 1

    def _accept(self, message: dict[str, Any]) -> None:
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
            return  # `drain` read the request; `finish` serves it
        handler = self._handler or self._refuse_unknown
        task = self._tasks.create_task(_run(handler, request))
        self._handler_tasks.add(task)
        task.add_done_callback(self._handler_tasks.discard)

    async def _cancel_handlers(self) -> None:
        """Cancel the handlers of requests for which the agent no longer waits.

        The lock prevents a partly written reply.
        """
        async with self._write_lock:
            for task in self._handler_tasks:
                task.cancel()
            self.state.requests.clear()

    async def _refuse_unknown(self, request: IncomingRequest) -> None:
        await self.refuse(request.id, METHOD_NOT_FOUND, f"unknown method {request.method!r:.100}")

    async def _exit_error(self) -> AgentError:
        """Kill the rest of the agent; return an error that says how the agent ended."""
        try:
            async with asyncio.timeout(_EXIT_WAIT_SEC):
                code: int | None = await self._process.wait()
        except TimeoutError:
            code = None
        await self._process.kill()
        if self._stderr_task is not None:
            # A process outside of the group may hold the pipe open, so wait only briefly.
            await asyncio.wait({self._stderr_task}, timeout=_EXIT_WAIT_SEC)
        how = "closed its output" if code is None else f"ended with exit code {code}"
        self._closed_reason = f"agent {self._name!r} {how}"
        tail = self._stderr.last_lines()
        return AgentError(
            self._closed_reason + (f"; the end of its stderr:\n{tail}" if tail else "")
        )


async def _run(handler: RequestHandler, request: IncomingRequest) -> None:
    await handler(request)


def _ignore() -> None:
    """Do nothing: the default callback."""


def _incoming(message: dict[str, Any]) -> IncomingRequest:
    key, method = message["id"], message["method"]
    if type(key) not in (int, str) or (isinstance(key, str) and len(key) > _ID_CHARS):
        raise AgentProtocolError(
            "the agent sent a request id that is not a short string or an integer"
        )
    if not isinstance(method, str):
        raise AgentProtocolError("the agent sent a request whose method is not a string")
    return IncomingRequest(key, method, as_object(message.get("params")))


def _first_failure(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first exception of a task group's failures, which caused the others."""
    first = group.exceptions[0]
    if isinstance(first, BaseExceptionGroup):
        return _first_failure(cast("BaseExceptionGroup[BaseException]", first))
    return first
