"""A model endpoint on loopback with one fixed conversation, and a receiver that keeps requests."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

QUESTION = "What is the weather in Paris, and in Atlantis?"
SYSTEM = "Use the tool for each city."
ANSWER = "Paris has 21 degrees. The tool knows no Atlantis."
MODEL = "stub-large"

_CALLS = {0: ("call-1", "Paris"), 1: ("call-2", "Atlantis")}


def _completion(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Answer by the number of tool results so far: two calls, then a text."""
    done = sum(message["role"] == "tool" for message in messages)
    if done in _CALLS:
        identifier, city = _CALLS[done]
        function = {"name": "get_weather", "arguments": json.dumps({"city": city})}
        call = {"id": identifier, "type": "function", "function": function}
        message: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call]}
        reason = "tool_calls"
    else:
        message, reason = {"role": "assistant", "content": ANSWER}, "stop"
    usage = {
        "prompt_tokens": 40 + 10 * done,
        "completion_tokens": 7,
        "total_tokens": 47 + 10 * done,
    }
    return {
        "id": f"chatcmpl-{done}",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": usage | {"prompt_tokens_details": {"cached_tokens": 5}},
    }


def _body(request: BaseHTTPRequestHandler) -> bytes:
    if request.headers.get("transfer-encoding") != "chunked":
        return request.rfile.read(int(request.headers.get("content-length", 0)))
    pieces: list[bytes] = []
    while size := int(request.rfile.readline().partition(b";")[0], 16):
        pieces.append(request.rfile.read(size))
        request.rfile.readline()
    request.rfile.readline()
    return b"".join(pieces)


@dataclass
class Received:
    """What a receiver got: path, headers in lower case, and body of each request."""

    url: str
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)


@contextmanager
def _serving(answer: Any) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        # Clients send bodies in chunks only to a server of HTTP/1.1.
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = _body(self)
            kind, response = answer(self.path, self.headers, body)
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(response)))
            self.end_headers()
            self.wfile.write(response)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def chat_stub() -> Iterator[str]:
    """Serve `/v1/chat/completions`; yield the URL that ends with `/v1`."""

    def answer(_: str, __: object, body: bytes) -> tuple[str, bytes]:
        return "application/json", json.dumps(_completion(json.loads(body)["messages"])).encode()

    with _serving(answer) as url:
        yield f"{url}/v1"


@contextmanager
def receiver() -> Iterator[Received]:
    """Accept every request with an empty answer, and keep the requests."""
    received = Received("")

    def answer(path: str, headers: Any, body: bytes) -> tuple[str, bytes]:
        received.requests.append((path, {k.lower(): v for k, v in headers.items()}, body))
        return "application/x-protobuf", b""

    with _serving(answer) as url:
        received.url = url
        yield received
