"""Connections to MCP servers: a child process, or a server behind streamable HTTP."""

import json
import os
import re
import select
import subprocess
import time
from collections.abc import Iterator
from typing import Protocol

from .errors import HttpError, ToolError
from .http_call import HttpCall
from .wire import Json, Wire, as_list, as_object

PROTOCOL_VERSION = "2025-06-18"
_MESSAGE_BYTES = 8 * 1024 * 1024
_SESSION = "mcp-session-id"
_VISIBLE = re.compile(r"[\x21-\x7e]{1,512}")


class McpConnection(Protocol):
    """A connection to one tool server."""

    def call(self, method: str, params: Json, timeout: float) -> Json:
        """Send a request and return its result.

        Raises:
            ToolError: The server refused, failed, or was silent for `timeout` seconds.
        """
        ...

    def notify(self, method: str) -> None:
        """Send a notification."""
        ...

    def close(self) -> None:
        """Close the connection. Idempotent."""
        ...


class StdioConnection:
    """Speaks ndjson with a child process, in the agent's process group."""

    def __init__(self, wire: Wire, config: Json, cwd: str) -> None:
        self._wire = wire
        self._buffer = b""
        self._next_id = 1
        self._closed = False
        pairs = [as_object(item) for item in as_list(config.get("env"))]
        env = {str(pair.get("name")): str(pair.get("value")) for pair in pairs}
        command = [str(config["command"]), *map(str, as_list(config.get("args")))]
        try:
            self._child = subprocess.Popen(
                command,
                cwd=cwd,
                env={**os.environ, **env},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
            )
        except (OSError, ValueError) as error:
            raise ToolError(f"the tool server did not start: {error}") from error
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._in = self._child.stdin.fileno()
        self._out = self._child.stdout.fileno()
        os.set_blocking(self._in, False)

    def call(self, method: str, params: Json, timeout: float) -> Json:
        """Send a request and return its result. Tell the server if the turn is cancelled."""
        deadline = time.monotonic() + timeout
        request_id = self._next_id
        self._next_id += 1
        self._send({"id": request_id, "method": method, "params": params}, deadline)
        try:
            while True:
                message = self._receive(deadline)
                if message.get("id") == request_id and "method" not in message:
                    return _result_of(message)
                self._serve(message, deadline)
        except BaseException:
            self._cancel_request(request_id)
            raise

    def notify(self, method: str) -> None:
        """Send a notification."""
        self._send({"method": method}, time.monotonic() + 10)

    def close(self) -> None:
        """Kill the child. Idempotent."""
        self._closed = True
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()

    def _send(self, body: Json, deadline: float) -> None:
        data = json.dumps({"jsonrpc": "2.0", **body}).encode() + b"\n"
        if self._closed:
            raise ToolError("the tool server was closed")
        while data:
            left = deadline - time.monotonic()
            if not self._wire.wait(self._in, left, events=select.POLLOUT):
                raise ToolError("the tool server does not read")
            try:
                data = data[os.write(self._in, data) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise ToolError("the tool server has ended") from error

    def _receive(self, deadline: float) -> Json:
        while b"\n" not in self._buffer:
            if not self._wire.wait(self._out, deadline - time.monotonic()):
                raise ToolError("the tool server did not answer in time")
            chunk = os.read(self._out, 65536)
            if not chunk:
                raise ToolError("the tool server has ended")
            self._buffer += chunk
            if len(self._buffer) > _MESSAGE_BYTES:
                self.close()
                raise ToolError("the tool server sent too much")
        line, self._buffer = self._buffer.split(b"\n", 1)
        try:
            return as_object(json.loads(line))
        except (ValueError, RecursionError):
            # Some servers print a banner.
            return {}

    def _serve(self, message: Json, deadline: float) -> None:
        if "method" not in message or "id" not in message:
            return
        reply: Json = {"id": message["id"]}
        if message["method"] == "ping":
            reply["result"] = {}
        else:
            reply["error"] = {"code": -32601, "message": "method not found"}
        self._send(reply, deadline)

    def _cancel_request(self, request_id: int) -> None:
        if self._closed:
            return
        body = {"method": "notifications/cancelled", "params": {"requestId": request_id}}
        line = json.dumps({"jsonrpc": "2.0", **body}).encode() + b"\n"
        try:
            os.write(self._in, line)
        except OSError:
            # The server has ended or does not read.
            return


class HttpConnection:
    """Posts each message; the response is JSON or an event stream."""

    def __init__(self, wire: Wire, config: Json) -> None:
        self._wire = wire
        self._url = str(config["url"])
        self._next_id = 1
        pairs = [as_object(item) for item in as_list(config.get("headers"))]
        self._headers = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": PROTOCOL_VERSION,
            **{str(pair.get("name")): str(pair.get("value")) for pair in pairs},
        }

    def call(self, method: str, params: Json, timeout: float) -> Json:
        """Send a request and return its result."""
        request_id = self._next_id
        self._next_id += 1
        body = {"id": request_id, "method": method, "params": params}
        try:
            with self._post(body, timeout) as call:
                if call.status != 200:
                    raise ToolError(f"the tool server answered with HTTP {call.status}")
                session = call.header(_SESSION)
                if _VISIBLE.fullmatch(session):
                    self._headers[_SESSION] = session
                for message in _messages(call):
                    if message.get("id") == request_id and "method" not in message:
                        return _result_of(message)
        except HttpError as error:
            raise ToolError(f"the tool server cannot be reached: {error}") from error
        raise ToolError("the tool server ended its response early")

    def notify(self, method: str) -> None:
        """Send a notification."""
        try:
            with self._post({"method": method}, 30):
                pass
        except HttpError as error:
            raise ToolError(f"the tool server cannot be reached: {error}") from error

    def close(self) -> None:
        """Do nothing: no connection is open between calls."""

    def _post(self, body: Json, timeout: float) -> HttpCall:
        data = json.dumps({"jsonrpc": "2.0", **body}).encode()
        return HttpCall(self._wire, self._url, data, self._headers, timeout=timeout)


def _messages(call: HttpCall) -> Iterator[Json]:
    if not call.header("content-type").startswith("text/event-stream"):
        yield _parsed(call.read(_MESSAGE_BYTES))
        return
    data: list[bytes] = []
    for line in call.lines(_MESSAGE_BYTES):
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif not line and data:
            yield _parsed(b"\n".join(data))
            data = []


def _parsed(data: bytes) -> Json:
    try:
        return as_object(json.loads(data))
    except (ValueError, RecursionError) as error:
        raise ToolError(f"the tool server sent invalid JSON: {error!s:.200}") from error


def _result_of(message: Json) -> Json:
    """Return the result in a response. Raise if the response is an error."""
    if "error" in message:
        error = as_object(message["error"])
        raise ToolError(f"the tool server refused: {str(error.get('message'))[:500]}")
    return as_object(message.get("result"))
