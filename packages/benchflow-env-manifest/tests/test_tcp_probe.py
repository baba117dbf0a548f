"""Readiness asked from the host, against servers on this host's loopback."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
from benchflow_env_manifest.tcp_probe import TcpProber, can_probe

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Loopback:
    """Dials this host, as a sandbox dials its inside."""

    def __init__(self) -> None:
        self.dialled = 0

    async def connect_tcp(self, port: int) -> socket.socket:
        self.dialled += 1
        conn = socket.socket()
        conn.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(conn, ("127.0.0.1", port))
        except BaseException:
            conn.close()
            raise
        return conn


def probe(port: int, path: str = "/", host: str = "localhost", tls: str = "") -> dict[str, str]:
    return {"host": host, "port": str(port), "path": path, "tls": tls}


def prober(activity: asyncio.Event | None = None, dead: str = "") -> TcpProber:
    return TcpProber(Loopback(), activity or asyncio.Event(), lambda: dead)


async def answered(said: bytes, seconds: float = 30) -> str:
    """What a service that says `said` is told to lack."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        answers = await prober(dead="only one try").ask_all({"x": probe(port)}, seconds)
    return answers["x"]


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", None),
        (b"HTTP/1.0 302 Found\r\n\r\n", None),
        (b"HTTP/1.1 503 Busy\r\n\r\n", "503"),
        (b"SSH-2.0-nothing of ours", "SSH-2.0"),
        (b"HTTP/1.1", "answered"),
        (b"", "without an answer"),
        (b"\xff" * (1 << 20), "answered"),
    ],
)
def test_only_2xx_and_3xx_mean_ready_and_no_more_than_the_status_is_read(
    said: bytes, problem: str | None
):
    found = asyncio.run(answered(said))
    assert found == "" if problem is None else problem in found
    assert len(found) < 200


def test_a_service_with_new_output_is_probed_again_at_once():
    async def test() -> None:
        activity = asyncio.Event()
        with socket.socket() as late:
            late.bind(("127.0.0.1", 0))
            probes = {"tcp": probe(late.getsockname()[1], path="")}
            async with asyncio.TaskGroup() as group:
                asking = group.create_task(prober(activity).ask_all(probes, 60))
                await asyncio.sleep(0)
                late.listen()
                activity.set()
            assert asking.result() == {"tcp": ""}

    asyncio.run(test())


def test_the_probes_stop_when_a_service_has_ended():
    async def test() -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            port = closed.getsockname()[1]
            answers = await prober(dead="it died").ask_all({"http": probe(port)}, 3600)
        assert "ConnectionRefusedError" in answers["http"]

    asyncio.run(test())


def test_a_silent_service_fails_at_the_time_limit():
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            answers = await prober().ask_all({"http": probe(port)}, 0.1)
        assert "TimeoutError" in answers["http"]

    asyncio.run(test())


def test_an_encrypted_or_remote_probe_does_not_run_from_the_host():
    assert can_probe(probe(1))
    assert can_probe(probe(1, host="127.0.0.1"))
    assert not can_probe(probe(1, host="::1"))
    assert not can_probe(probe(1, host="mail.internal"))
    assert not can_probe(probe(1, tls="yes"))
