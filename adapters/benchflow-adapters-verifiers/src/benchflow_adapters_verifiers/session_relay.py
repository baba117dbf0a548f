"""Leads the calls of verifiers' tool servers, which are processes of their own, to our sessions."""

import hashlib
import json
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from benchflow_contracts import BenchFlowError, Task
from benchflow_tool_sessions import BlockingSession, BlockingSessions, Outcome

_MAX_BODY: Final = 8 * 2**20


class SessionRelay:
    """Sessions by secret, and a server on the loopback that makes their calls.

    A request has the secret of a session as its bearer token, and the JSON `{"name", "arguments"}`.
    The answer has the text of the result, and whether the call failed.
    """

    def __init__(self, sessions: BlockingSessions) -> None:
        self._sessions = sessions
        self._open: dict[str, BlockingSession] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """The address of the server."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}/"

    def open(self, task: Task) -> tuple[str, BlockingSession]:
        """Open a session. Return its secret, and the session.

        Raises:
            BenchFlowError: The session did not start.
        """
        session = self._sessions.open(task)
        secret = secrets.token_urlsafe(32)
        self._open[_digest(secret)] = session
        return secret, session

    def finish(self, secret: str, message: str) -> Outcome:
        """Submit if the session has not ended, close it, and return its outcome."""
        session = self._open.pop(_digest(secret))
        try:
            if not session.session.is_ended:
                while session.submit(message) is None:
                    message = ""
            return session.outcome()
        finally:
            session.close()

    def find(self, secret: str) -> BlockingSession | None:
        """Return the session of a secret."""
        return self._open.get(_digest(secret))

    def close(self) -> None:
        """End all sessions, and delete their sandboxes. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._sessions.close()


def _digest(secret: str) -> str:
    # The time of a look-up by the secret itself would tell how much of a guess is right.
    return hashlib.sha256(secret.encode()).hexdigest()


def _handler(relay: SessionRelay) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """Make a call."""
            secret = self.headers.get("Authorization", "").removeprefix("Bearer ")
            size = self.headers.get("Content-Length", "")
            session = relay.find(secret)
            if session is None:
                self._send(401, {"text": "no session has this secret", "failed": True})
            elif not size.isascii() or not size.isdigit() or int(size) > _MAX_BODY:
                self._send(413, {"text": "the call is too large", "failed": True})
            else:
                self._send(*_answer(session, self.rfile.read(int(size))))

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - of the base
            """Write no log."""

        def _send(self, status: int, answer: dict[str, Any]) -> None:
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


def _answer(session: BlockingSession, body: bytes) -> tuple[int, dict[str, Any]]:
    try:
        call = json.loads(body)
        result = session.call(call["name"], call["arguments"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return 400, {"text": "the call is malformed", "failed": True}
    except BenchFlowError as error:
        return 200, {"text": str(error), "failed": True}
    return 200, {"text": result.text, "failed": result.is_error}
