"""Bytes on a real socket that a proxy could read otherwise than the service does."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from benchflow_engine.http_listener import open_listener
from benchflow_serve import RolloutService, create_app
from benchflow_serve.asgi_server import AsgiServer, BoundedProtocol
from benchflow_serve_client import RolloutRequest
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


@asynccontextmanager
async def serving(service: RolloutService) -> AsyncGenerator[AsgiServer]:
    server = AsgiServer(create_app(service))
    with open_listener("127.0.0.1", 0, backlog=16) as listener:
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve([listener]))
            await server.has_started.wait()
            yield server
            service.stop_streams()
            server.should_exit = True


@pytest.mark.timeout(60)
def test_connections_without_a_request_are_bounded_and_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BoundedProtocol, "most_waiting", 8)
    service = RolloutService(settings_at(tmp_path, "hanging_agent"))

    async def check() -> None:
        async with serving(service) as server:
            address = server.servers[0].sockets[0].getsockname()
            stream = await asyncio.open_connection(*address)
            ident = (await service.submit(RolloutRequest(task=TASK))).id
            stream[1].write(f"GET /v1/rollouts/{ident}/events HTTP/1.1\r\n{OWN}\r\n".encode())
            assert await stream[0].readuntil(b"event: running")
            opened = []
            for _ in range(12):
                opened.append(await asyncio.open_connection(*address))
                opened[-1][1].write(b"GET /v1/health HTTP/1.1\r\nX: ")
            for reader, _ in opened[:4]:
                with suppress(ConnectionError):
                    assert await reader.read() == b""
            statuses, _ = await exchange(
                server, f"GET /v1/health HTTP/1.1\r\n{OWN.replace('keep-alive', 'close')}\r\n"
            )
            assert statuses == [200]
            assert not stream[0].at_eof()
            await service.cancel(ident)
            assert await stream[0].readuntil(b"event: ended")
            for _, writer in [*opened, stream]:
                writer.close()

    asyncio.run(check())


@pytest.mark.timeout(60)
def test_an_ambiguous_request_is_refused_and_its_connection_closed(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"{TOKEN}\n")
    settings = settings_at(tmp_path, "hanging_agent", slots=1)
    safe = {"no_auth": False, "token_file": tmp_path / "tokens"}
    service = RolloutService(settings.model_copy(update=safe))

    async def check() -> None:
        async with serving(service) as server:
            for name, data in REFUSED.items():
                statuses, text = await exchange(server, data)
                assert statuses in ([400], [421]) or "without an end" in name, (name, text)
            assert service.statuses() == []
            ended = OWN.replace("keep-alive", "close")
            path = "/v1/rollouts/a%0d%0aX-Injected:%20b"
            statuses, text = await exchange(server, f"GET {path} HTTP/1.1\r\n{ended}\r\n")
            assert (statuses, "\nX-Injected" in text) == ([400], False)
            # One length alone is a request, and the next one is read after it.
            two = f"{HIDDEN}GET /v1/health HTTP/1.1\r\n{ended}\r\n"
            assert (await exchange(server, two))[0] == [202, 200]

    asyncio.run(check())
