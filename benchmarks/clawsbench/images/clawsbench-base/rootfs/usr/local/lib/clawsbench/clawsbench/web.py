"""The HTTP/1.1 face of a service."""

import json
import socket
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar

from .database import connect
from .errors import ApiError
from .front import IDLE_SECONDS
from .mcp import answer_mcp
from .operation import Operation, Request, Service
from .store import transaction

BODY_CAP = 1024 * 1024
DISCARD_CAP = 8 * BODY_CAP


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice")
    return found


def read_json(raw: bytes) -> dict[str, Any]:
    """Return the JSON object in a body; no body is an empty object."""
    try:
        value = json.loads(raw, object_pairs_hook=_no_duplicates) if raw else {}
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "bad_json", f"the body is not JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise ApiError(400, "bad_json", "the body is not a JSON object")
    return value


class Web:
    """Serves one service: a database connection per client connection."""

    def __init__(self, service: Service, database: str, *, mcp: bool) -> None:
        self.service = service
        self.database = database
        self.mcp = mcp

    def attend(self, fd: int, address: tuple[str, int]) -> None:
        """Serve one connection to its end, and close it."""
        with socket.socket(fileno=fd) as wire:
            try:
                ClawHandler(wire, address, self)
            finally:
                with suppress(OSError):
                    wire.shutdown(socket.SHUT_WR)

    def run(self, db: sqlite3.Connection, operation: Operation, args: dict[str, Any]) -> object:
        """Run one operation in one transaction."""
        try:
            with transaction(db, writes=operation.writes):
                return operation.run(db, args)
        except sqlite3.OperationalError as error:
            raise ApiError(503, "storage", f"the database refused: {error}") from error


class ClawHandler(BaseHTTPRequestHandler):
    """Speaks HTTP with one client until it closes or stays silent for a minute."""

    server: Web
    protocol_version = "HTTP/1.1"
    server_version = "clawsbench"
    sys_version = ""
    timeout = IDLE_SECONDS
    # The status line, the headers and the body leave in one packet.
    wbufsize = -1
    disable_nagle_algorithm = True
    _reply_headers: ClassVar[Mapping[str, str]] = {
        "Content-Type": "application/json",
        "Cache-Control": "no-store",
    }

    def setup(self) -> None:
        super().setup()
        self.db = connect(self.server.database)

    def finish(self) -> None:
        try:
            super().finish()
        except OSError:
            # The client went away while the reply was on its way.
            pass
        finally:
            self.db.close()

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def _answer(self) -> None:
        try:
            raw = self._read_body()
            status, payload = self._dispatch(raw)
        except ApiError as error:
            status, payload = error.status, error.body()
        self._reply(status, payload)

    def _dispatch(self, raw: bytes) -> tuple[int, object]:
        service = self.server.service
        if self.path == "/health" and self.command == "GET":
            self.db.execute("SELECT count(*) FROM settings").fetchone()
            return 200, {"status": "ok", "service": service.name}
        body = read_json(raw)
        if self.path == "/mcp" and self.server.mcp and self.command == "POST":
            return answer_mcp(
                service, body, lambda operation, args: self.server.run(self.db, operation, args)
            )
        operation, args = service.resolve(Request(self.command, self.path, body))
        return operation.status, self.server.run(self.db, operation, args)

    def _read_body(self) -> bytes:
        if "Transfer-Encoding" in self.headers:
            self.close_connection = True
            raise ApiError(411, "length_required", "send a Content-Length, not chunks")
        text = self.headers.get("Content-Length", "0")
        if not text.isascii() or not text.isdigit():
            self.close_connection = True
            raise ApiError(400, "bad_length", "Content-Length is not a number")
        if len(text) > 12 or int(text) > BODY_CAP:
            self._discard(min(int(text[:12]), DISCARD_CAP))
            self.close_connection = True
            raise ApiError(413, "too_large", f"the body is larger than {BODY_CAP} bytes")
        raw = self.rfile.read(int(text))
        if len(raw) != int(text):
            self.close_connection = True
            raise ApiError(400, "short_body", "the body ended early")
        return raw

    def _discard(self, size: int) -> None:
        # To close on unread bytes would reset the connection, and lose the refusal.
        while size > 0 and (chunk := self.rfile.read(min(size, 65536))):
            size -= len(chunk)

    def _reply(self, status: int, payload: object) -> None:
        body = b"" if payload is None else json.dumps(payload, ensure_ascii=False).encode() + b"\n"
        self.send_response(status)
        for name, value in self._reply_headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Stay silent: the rollout's own record says what the agent did."""
