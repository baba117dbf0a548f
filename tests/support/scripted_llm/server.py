"""The HTTP side, on a free port of the loopback interface."""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from .exchange import ModelRequest
from .policy import Policy
from .replies import body, events
from .requests import PATHS, gemini_call, read_request


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay quiet when a killed agent hangs up."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class ScriptedLlm:
    """A running model server. `requests` holds every call, in order of arrival."""

    def __init__(self, policy: Policy, *, port: int = 0) -> None:
        self.policy = policy
        self.requests: list[ModelRequest] = []
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", port), self._handler())
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def note(self, request: ModelRequest) -> int:
        with self._lock:
            self.requests.append(request)
            return len(self.requests)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        llm = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                path = self.path.split("?")[0]
                if path == "/v1/models":
                    model = {"id": "scripted", "object": "model", "created": 0, "owned_by": "test"}
                    self._json(200, {"object": "list", "data": [model]})
                else:
                    self._json(404, {"error": {"message": f"no {path}"}})

            def do_POST(self) -> None:
                size = int(self.headers.get("Content-Length", 0))
                data = self.rfile.read(size)
                if len(data) < size:
                    raise ConnectionResetError("the request was cut")
                path = self.path.split("?")[0]
                if path == "/v1/messages/count_tokens":
                    self._json(200, {"input_tokens": 11})
                    return
                if path.endswith(":countTokens"):
                    self._json(200, {"totalTokens": 11})
                    return
                called = gemini_call(path)
                wire = PATHS.get(path) if called is None else "gemini"
                if wire is None:
                    self._json(404, {"error": {"message": f"no {path}"}})
                    return
                headers = dict(self.headers.items())
                request = read_request(wire, json.loads(data), headers, called)
                number = llm.note(request)
                reply = llm.policy(request)
                if reply.status != 200:
                    self._json(reply.status, {"error": {"message": reply.text}})
                    return
                if not request.stream:
                    self._json(200, body(request, reply, number))
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                for event in events(request, reply, number):
                    self.wfile.write(event)
                self.close_connection = True

            def _json(self, status: int, value: dict[str, Any]) -> None:
                data = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Stay quiet."""

        return Handler
