"""An MCP server that runs as a child process."""

import json
import os
import select
import subprocess
import time

from .faults import ToolError
from .rpc import MESSAGE_BYTES, result_of
from .wire import Json, Wire, as_list, as_object


class StdioRpc:
    """Speaks ndjson with a child process. Belongs to the agent's process group."""

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
        """Send a request and wait for its response; a cancelled turn tells the server."""
        deadline = time.monotonic() + timeout
        request_id = self._next_id
        self._next_id += 1
        self._send({"id": request_id, "method": method, "params": params}, deadline)
        try:
            while True:
                message = self._receive(deadline)
                if message.get("id") == request_id and "method" not in message:
                    return result_of(message)
                self._serve(message, deadline)
        except BaseException:
            self._give_up(request_id)
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
            if len(self._buffer) > MESSAGE_BYTES:
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

    def _give_up(self, request_id: int) -> None:
        if self._closed:
            return
        body = {"method": "notifications/cancelled", "params": {"requestId": request_id}}
        line = json.dumps({"jsonrpc": "2.0", **body}).encode() + b"\n"
        try:
            os.write(self._in, line)
        except OSError:
            # It has ended, or reads nothing: either way nobody is left to tell.
            return
