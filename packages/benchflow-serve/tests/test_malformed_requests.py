"""Bytes on a real socket that a proxy could read otherwise than the service does."""

import asyncio
import re
from pathlib import Path

import pytest
from benchflow_engine.http_listener import open_listener
from benchflow_serve import RolloutService, create_app
from benchflow_serve.asgi_server import AsgiServer
from served_rollouts import TASK, settings_at

TOKEN = "a-token-that-is-long-enough"
BODY = f'{{"task":"{TASK}"}}'
OWN = f"Host: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\nConnection: keep-alive\r\n"
SUBMIT = f"POST /v1/rollouts HTTP/1.1\r\n{OWN}Content-Type: application/json\r\n"
CHUNK = f"{len(BODY):x}\r\n{BODY}\r\n0\r\n\r\n"
HIDDEN = f"{SUBMIT}Content-Length: {len(BODY)}\r\n\r\n{BODY}"
"""A request that the length of the one before it covers, or does not cover."""

REFUSED = {
    "a length and chunks": f"{SUBMIT}Content-Length: {len(CHUNK + HIDDEN)}\r\n"
    f"Transfer-Encoding: chunked\r\n\r\n{CHUNK}{HIDDEN}",
    "chunks and a length": f"{SUBMIT}Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n"
    f"{CHUNK}{HIDDEN}",
    "two lengths": f"{SUBMIT}Content-Length: {len(BODY)}\r\nContent-Length: 0\r\n\r\n"
    f"{BODY}{HIDDEN}",
    "a length with a sign": f"{SUBMIT}Content-Length: +{len(BODY)}\r\n\r\n{BODY}{HIDDEN}",
    "an encoding before a colon": f"{SUBMIT}Transfer-Encoding : chunked\r\n\r\n{CHUNK}{HIDDEN}",
    "an unknown encoding": f"{SUBMIT}Transfer-Encoding: xchunked\r\n\r\n{CHUNK}{HIDDEN}",
    "a negative chunk": f"{SUBMIT}Transfer-Encoding: chunked\r\n\r\n-1\r\n{CHUNK}{HIDDEN}",
    "two tokens": f"GET /v1/capacity HTTP/1.1\r\n{OWN}Authorization: Bearer x\r\n\r\n{HIDDEN}",
    "two keys": f"{SUBMIT}Idempotency-Key: a\r\nIdempotency-Key: b\r\n"
    f"Content-Length: {len(BODY)}\r\n\r\n{BODY}{HIDDEN}",
    "two hosts": f"GET /v1/capacity HTTP/1.1\r\n{OWN}Host: evil.example\r\n\r\n{HIDDEN}",
    "another host": f"GET /v1/health HTTP/1.1\r\nHost: evil.example\r\n\r\n{HIDDEN}",
    "a return in a key": f"{SUBMIT}Idempotency-Key: a\rX: b\r\nContent-Length: 0\r\n\r\n",
    "a header without an end": f"GET /v1/health HTTP/1.1\r\n{OWN}X: {'x' * 80_000}",
}


async def exchange(server: AsgiServer, data: str) -> tuple[list[int], str]:
    """Send bytes, and return the statuses and the text until the server closes."""
    address = server.servers[0].sockets[0].getsockname()
    reader, writer = await asyncio.open_connection(*address)
    text = b""
    try:
        writer.write(data.encode("latin-1"))
        while part := await reader.read(65536):
            text += part
    except ConnectionError:
        pass  # The server does not read the rest, so the answer may be lost.
    finally:
        writer.transport.abort()
    statuses = re.findall(rb"HTTP/1\.1 (\d+) ", text)
    return list(map(int, statuses)), text.decode("latin-1")


@pytest.mark.timeout(60)
def test_an_ambiguous_request_is_refused_and_its_connection_closed(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"{TOKEN}\n")
    settings = settings_at(tmp_path, "hanging_agent", slots=1)
    safe = {"no_auth": False, "token_file": tmp_path / "tokens"}
    service = RolloutService(settings.model_copy(update=safe))

    async def check() -> None:
        server = AsgiServer(create_app(service))
        with open_listener("127.0.0.1", 0, backlog=16) as listener:
            async with asyncio.TaskGroup() as group:
                group.create_task(server.serve([listener]))
                await server.has_started.wait()
                for name, data in REFUSED.items():
                    statuses, text = await exchange(server, data)
                    assert statuses in ([400], [421]) or "without an end" in name, (name, text)
                assert service.statuses() == []
                ended = OWN.replace("keep-alive", "close")
                path = "/v1/rollouts/a%0d%0aX-Injected:%20b"
                statuses, text = await exchange(server, f"GET {path} HTTP/1.1\r\n{ended}\r\n")
                assert (statuses, "\nX-Injected" in text) == ([400], False)
                # One length alone is a request, and the next one is read after it.
                statuses, _ = await exchange(
                    server, f"{HIDDEN}GET /v1/health HTTP/1.1\r\n{ended}\r\n"
                )
                assert statuses == [202, 200]
                service.stop_streams()
                server.should_exit = True

    asyncio.run(check())
