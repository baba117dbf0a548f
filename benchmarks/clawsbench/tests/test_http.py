"""How the services speak HTTP and MCP, also with clients that misbehave."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BIN = Path(__file__).parents[1] / "images/clawsbench-base/rootfs/usr/local/bin"
ENV = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def raw(service: Any, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as wire:
        wire.sendall(data)
        wire.shutdown(socket.SHUT_WR)
        reply = b""
        while chunk := wire.recv(65536):
            reply += chunk
    return reply


def test_health_answers_without_a_world(tmp_path: Path, start: Callable[..., Any]) -> None:
    service = start("claw-gmail", tmp_path / "empty.db")
    assert service.get("/health") == {"status": "ok", "service": "claw-gmail"}
    assert service.refused("GET", "/profile") == (503, "not_seeded")


def test_one_connection_carries_many_requests(mail: Any) -> None:
    first = mail.get("/health")
    local = mail._connection.sock
    assert mail.get("/health") == first
    assert mail.refused("GET", "/nowhere") == (404, "not_found")
    assert mail._connection.sock is local


@pytest.mark.parametrize("connection", [b"", b"Connection: close\r\n"])
def test_the_quick_health_check_says_what_the_whole_service_says(
    mail: Any, connection: bytes
) -> None:
    asks = b"GET /health HTTP/1.1\r\nHost: a\r\n" + connection
    quick, whole = (raw(mail, asks + more + b"\r\n") for more in (b"", b"X-Other: 1\r\n"))
    lines = [
        [line for line in reply.split(b"\r\n") if not line.startswith(b"Date: ")]
        for reply in (quick, whole)
    ]
    assert lines[0] == lines[1]
    assert quick.count(b"Date: ") == 1
    assert json.loads(lines[0][-1]) == {"status": "ok", "service": "claw-gmail"}


FRONT = """
import os, sys
sys.path.insert(0, sys.argv[1])
from clawsbench.front import Front

def attend(fd, address):
    os.close(fd)

def load():
    print("loaded", flush=True)
    return attend

Front("claw", sys.argv[2], load).serve("", "127.0.0.1", 0)
"""


def test_a_connection_that_ends_without_a_word_loads_nothing(tmp_path: Path) -> None:
    library = str(BIN.parent / "lib" / "clawsbench")
    words = [sys.executable, "-IS", "-c", FRONT, library, str(tmp_path / "a.db")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline().rpartition(":")[2])
            for request in (b"", b"", b"GET /profile HTTP/1.1\r\n\r\n", b""):
                wire = socket.create_connection(("127.0.0.1", port), timeout=30)
                # It may be reset while it is half closed.
                with wire, contextlib.suppress(OSError):
                    wire.sendall(request)
                    wire.shutdown(socket.SHUT_WR)
                    assert wire.recv(1) == b""
        finally:
            process.terminate()
        assert process.stdout.read() == "loaded\n"


def test_requests_behind_a_health_check_are_all_answered(mail: Any) -> None:
    health = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
    replies = raw(mail, health + b"GET /profile HTTP/1.1\r\nHost: a\r\n\r\n" + health)
    assert replies.count(b"HTTP/1.1 200 OK\r\n") == 3
    assert replies.count(b'"status": "ok"') == 2


def test_a_server_is_started_in_any_words_that_the_parser_takes(tmp_path: Path) -> None:
    busy = socket.create_server(("127.0.0.1", 0))
    port = busy.getsockname()[1]
    database = tmp_path / "world.db"
    usual = ["--db", str(database), "serve", "--host", "127.0.0.1", "--port", str(port)]
    other = [f"--db={database}", "serve", "--no-mcp", f"--port={port}"]
    with busy:
        said = set()
        for words in (usual, other):
            command = [BIN / "claw-gmail", *words]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENV)
            assert done.returncode == 2
            said.add(done.stderr)
    (message,) = said
    assert message.startswith(f"claw-gmail: cannot listen on 127.0.0.1:{port}: ")


@pytest.mark.parametrize(
    ("method", "path", "body", "answer"),
    [
        ("GET", "/nowhere", None, (404, "not_found")),
        ("GET", "/messages/", None, (404, "not_found")),
        ("GET", "/messages/msg-9", None, (404, "not_found")),
        ("GET", "/messages/%00%ff", None, (400, "invalid_value")),
        ("DELETE", "/messages", None, (405, "method_not_allowed")),
        ("PUT", "/messages/msg-1", None, (405, "method_not_allowed")),
        ("GET", "/messages?colour=red", None, (400, "unknown_field")),
        ("GET", "/messages?limit=1&limit=2", None, (400, "invalid_value")),
        ("GET", "/messages?limit=0", None, (400, "invalid_value")),
        ("GET", "/messages?limit=%D9%A3", None, (400, "invalid_value")),
        ("GET", "/messages?text=%ff", None, (400, "bad_query")),
        ("GET", "/messages?after=yesterday", None, (400, "invalid_value")),
        ("GET", "/messages?after=2026-02-30T00:00:00Z", None, (400, "invalid_value")),
        ("POST", "/messages", b"{", (400, "bad_json")),
        ("POST", "/messages", b"[]", (400, "bad_json")),
        ("POST", "/messages", b"\xff", (400, "bad_json")),
        ("POST", "/messages", b"[" * 100_000, (400, "bad_json")),
        ("POST", "/messages", b'{"body": "a", "body": "b"}', (400, "bad_json")),
        ("POST", "/labels", {"name": "  "}, (400, "invalid_value")),
        ("POST", "/labels", {"name": "x" * 61}, (400, "invalid_value")),
        ("POST", "/labels", b'{"name": "\\ud800"}', (400, "invalid_value")),
        ("POST", "/labels?name=a", {"name": "b"}, (400, "invalid_value")),
        ("POST", "/messages", {"to": ["a@b.example"] * 3, "body": True}, (400, "invalid_value")),
        ("POST", "/messages", {"to": ["a@b\r\nBcc: c"], "body": ""}, (400, "invalid_value")),
        ("POST", "/messages", b'{"body":"' + b"x" * 2**20 + b'"}', (413, "too_large")),
        ("POST", "/mcp", None, (404, "not_found")),
    ],
)
def test_a_bad_request_is_told_what_is_wrong(
    still_mail: Any, method: str, path: str, body: Any, answer: Any
) -> None:
    assert still_mail.refused(method, path, body) == answer
    assert still_mail.get("/messages")["total"] == 2


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"POST /labels HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        (b"POST /labels HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /labels HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{}", 400),
        (b"POST /labels HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999\r\n\r\n", 413),
        (b"GET //[ HTTP/1.1\r\nHost: a\r\n\r\n", 404),
        (b"nonsense\r\n\r\n", 400),
    ],
)
def test_a_broken_client_gets_an_answer_and_the_service_lives(
    mail: Any, request_line: bytes, status: int
) -> None:
    assert f"{status}".encode() in raw(mail, request_line).split(b"\r\n")[0]
    assert mail.get("/health")["status"] == "ok"


def rpc(service: Any, method: str, params: Any = None, ident: Any = 1) -> Any:
    body = {"jsonrpc": "2.0", "id": ident, "method": method, "params": params or {}}
    status, reply = service.request("POST", "/mcp", body)
    assert (status, reply["id"]) == (200, ident)
    return reply


def test_mcp_offers_every_operation_as_a_tool(mail: Any) -> None:
    assert rpc(mail, "initialize")["result"]["capabilities"] == {"tools": {}}
    note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert mail.request("POST", "/mcp", note) == (202, None)
    tools = {tool["name"]: tool for tool in rpc(mail, "tools/list")["result"]["tools"]}
    assert {"list", "get", "send", "modify", "delete-label"} <= set(tools)
    assert tools["send"]["inputSchema"]["required"] == ["body"]


def test_mcp_calls_do_what_http_does(mail: Any) -> None:
    call = {"name": "modify", "arguments": {"id": "msg-1", "remove": ["inbox"]}}
    result = rpc(mail, "tools/call", call)["result"]
    assert result["isError"] is False
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
    assert mail.get("/messages/msg-1")["labels"] == ["unread"]


@pytest.mark.parametrize(
    "call",
    [
        {"name": "nothing"},
        {"name": "get", "arguments": {"id": "msg-9"}},
        {"name": "get", "arguments": {}},
        {"name": "get", "arguments": []},
        {"name": "get", "arguments": {"id": 1}},
    ],
)
def test_mcp_tells_a_refusal_as_a_failed_call(mail: Any, call: Any) -> None:
    assert rpc(mail, "tools/call", call)["result"]["isError"] is True


def test_mcp_refuses_what_it_does_not_know(mail: Any) -> None:
    assert rpc(mail, "resources/list")["error"]["code"] == -32601
    assert mail.request("POST", "/mcp", {"id": 1})[0] == 400
