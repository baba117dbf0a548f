"""A server on loopback that keeps what it accepts, and answers as a test says."""

import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


class Ingest:
    """Accepts records. `answer` is the status and the headers of the next answers."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.answer: tuple[int, dict[str, str]] = (200, {})
        self.body = b""
        """The body of the next answers."""
        self.is_cut = False
        """Whether a request is accepted, and its connection then ends without an answer."""
        self.requests = threading.Semaphore(0)
        self._server: ThreadingHTTPServer | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """The base URL, also while the server is away."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start, or start again on the same port."""
        ingest = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status, headers = ingest.answer
                if status == 200:
                    ingest.records += json.loads(gzip.decompress(body))["records"]
                    ingest.headers.append({k.lower(): v for k, v in self.headers.items()})
                if ingest.is_cut:
                    self.close_connection = True
                    return
                self.send_response(status)
                for name, value in {"content-length": str(len(ingest.body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(ingest.body)
                ingest.requests.release()

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        class Server(ThreadingHTTPServer):
            allow_reuse_address = True

        self._server = Server(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Go away. The port refuses connections."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


@pytest.fixture
def ingest() -> Iterator[Ingest]:
    """Serve until the test ends."""
    server = Ingest()
    server.start()
    yield server
    server.stop()
