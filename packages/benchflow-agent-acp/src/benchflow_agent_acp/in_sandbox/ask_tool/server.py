"""The MCP server of the tool `ask_user`, on stdio. The agent starts it."""

import json
import os
import select
import socket
import sys
import time
from typing import NoReturn

from .broker_protocol import LINE_BYTES, Json, address, as_object, decode, encode

_INPUT_BYTES = 1024 * 1024
_PROGRESS_SEC = 10.0
"""The interval of progress messages, for clients that ask for them."""

_DESCRIPTION = (
    "Ask the user one question and wait for the answer. Give `options` when the answers can be "
    "listed. Ask only for what you cannot find out yourself."
)
_TOOL: Json = {
    "description": _DESCRIPTION,
    "inputSchema": {
        "type": "object",
        "properties": {
            "question": {"type": "string"},
            "options": {
                "type": "array",
                "items": {"type": "string"},
                "description": "The possible answers, each in a few words.",
            },
            "allow_other": {
                "type": "boolean",
                "description": "Whether the user may answer something else, in words.",
            },
        },
        "required": ["question"],
    },
}
_FIELDS = tuple(_TOOL["inputSchema"]["properties"])


class Call:
    """A question that waits for its answer."""

    def __init__(self, key: object, link: socket.socket, progress: object) -> None:
        self.key = key
        self.link = link
        self.progress = progress
        self.buffer = b""
        self.steps = 0


class Server:
    """Serves one client. Several questions may wait at once."""

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._address = address()
        self._calls: dict[int, Call] = {}
        self._buffer = b""

    def serve(self) -> NoReturn:
        """Serve until the client closes the pipe."""
        due = time.monotonic() + _PROGRESS_SEC
        while True:
            poll = select.poll()
            for fd in (0, *self._calls):
                poll.register(fd, select.POLLIN)
            left = max(0.0, due - time.monotonic()) if self._calls else None
            for fd, _ in poll.poll(None if left is None else left * 1000):
                if fd == 0:
                    self._read_client()
                elif fd in self._calls:
                    self._read_broker(self._calls[fd])
            if time.monotonic() >= due:
                due = time.monotonic() + _PROGRESS_SEC
                self._report_progress()

    def _read_client(self) -> None:
        chunk = os.read(0, 65536)
        if not chunk or len(self._buffer) > _INPUT_BYTES:
            sys.exit(0)
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        for line in lines:
            message = decode(line)
            method, params = message.get("method"), as_object(message.get("params"))
            if method == "notifications/cancelled":
                self._cancel(params.get("requestId"))
            elif "id" in message and isinstance(method, str):
                self._answer(message["id"], method, params)

    def _answer(self, key: object, method: str, params: Json) -> None:
        if method == "initialize":
            version = params.get("protocolVersion", "2025-06-18")
            info = {"name": "benchflow", "version": "1.0.0"}
            capabilities: Json = {"tools": {}}
            result = {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}
            self._send(id=key, result=result)
        elif method == "ping":
            self._send(id=key, result={})
        elif method == "tools/list":
            self._send(id=key, result={"tools": [{"name": self._tool, **_TOOL}]})
        elif method == "tools/call" and params.get("name") == self._tool:
            self._ask(key, params)
        else:
            self._send(id=key, error={"code": -32601, "message": "method not found"})

    def _ask(self, key: object, params: Json) -> None:
        arguments = as_object(params.get("arguments"))
        line = encode({name: arguments[name] for name in _FIELDS if name in arguments})
        if line is None:
            self._reply(key, "The question is too long: keep it below 4 KB.", failed=True)
            return
        link = socket.socket(socket.AF_UNIX)
        try:
            link.connect(self._address)
            link.sendall(line)
        except OSError:
            link.close()
            self._reply(key, "The user cannot be reached. Decide yourself.", failed=True)
            return
        token = as_object(params.get("_meta")).get("progressToken")
        self._calls[link.fileno()] = Call(key, link, token)

    def _read_broker(self, call: Call) -> None:
        chunk = call.link.recv(LINE_BYTES)
        call.buffer += chunk
        if chunk and b"\n" not in call.buffer:
            return
        self._close(call)
        result = as_object(decode(call.buffer).get("result"))
        if result:
            self._reply(call.key, _answer_text(result), failed=False)
        else:
            self._reply(call.key, "This question cannot be asked. Decide yourself.", failed=True)

    def _cancel(self, key: object) -> None:
        for call in list(self._calls.values()):
            if call.key == key:
                self._close(call)

    def _close(self, call: Call) -> None:
        del self._calls[call.link.fileno()]
        call.link.close()

    def _report_progress(self) -> None:
        for call in self._calls.values():
            if call.progress is not None:
                call.steps += 1
                params = {"progressToken": call.progress, "progress": call.steps}
                self._send(method="notifications/progress", params=params)

    def _reply(self, key: object, text: str, *, failed: bool) -> None:
        content = [{"type": "text", "text": text}]
        self._send(id=key, result={"content": content, "isError": failed})

    def _send(self, **message: object) -> None:
        data = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
        while data:
            data = data[os.write(1, data) :]


def _answer_text(result: Json) -> str:
    words = ". ".join(str(part) for part in (result.get("selected"), result.get("text")) if part)
    if result.get("outcome") != "answered" or not words:
        return "The user gave no answer. Decide yourself."
    return f"The user answered: {words}"


def main(tool: str) -> NoReturn:
    """Serve the tool under this name on the standard streams."""
    Server(tool).serve()
