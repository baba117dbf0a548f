"""The routes of the live streams, on a real server: who may read, and how streams end."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from benchflow_dashboard.live.hub import MAX_OF_ADDRESS, MAX_OF_USER
from benchflow_dashboard.security.users import add_user
from dashboard_forms import csrf_of
from litestar import Litestar
from litestar.testing import TestClient

PROGRAM = """
import sys
from pathlib import Path
from benchflow_dashboard import DashboardSettings, serve
home = Path(sys.argv[1])
settings = DashboardSettings(
    jobs_dir=home / "jobs",
    index=home / "index.db",
    port=0,
    users=home / "users.toml" if (home / "users.toml").exists() else None,
)
serve(settings, on_ready=lambda url: print(url, flush=True))
"""
STREAMS = 50


class Server:
    """A dashboard in a process of its own."""

    def __init__(self, home: Path) -> None:
        (home / "jobs").mkdir()
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(home)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def client(self) -> httpx.Client:
        return httpx.Client(transport=httpx.HTTPTransport(retries=8), base_url=self.url, timeout=30)

    def open_stream(self, query: str = "on=runs") -> socket.socket:
        """Open a stream, and return when its first event has come."""
        host, port = self.url.removeprefix("http://").split(":")
        connection = socket.create_connection((host, int(port)), timeout=30)
        request = f"GET /live?{query} HTTP/1.1\r\nHost: {host}\r\n\r\n"
        connection.sendall(request.encode())
        data = b""
        while b"event: snapshot" not in data:
            data += (chunk := connection.recv(65_536))
            assert chunk, data
        return connection

    def stop(self) -> tuple[int, str, float]:
        """End the server. Return its exit code, its errors and the seconds."""
        began = time.monotonic()
        os.kill(self.process.pid, signal.SIGTERM)
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors, time.monotonic() - began


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    if server.process.poll() is None:
        server.process.kill()
    server.process.communicate()


def read_to_the_end(connection: socket.socket) -> bytes:
    data = b""
    while chunk := connection.recv(65_536):
        data += chunk
    return data


def test_sigterm_ends_fifty_streams_cleanly(server: Server) -> None:
    with ExitStack() as stack:
        assert stack.enter_context(server.client()).get("/runs").status_code == 200
        streams = [stack.enter_context(closing(server.open_stream())) for _ in range(STREAMS)]
        code, errors, _ = server.stop()
        # The last chunk of a response: the stream was not cut.
        assert [read_to_the_end(each)[-5:] for each in streams] == [b"0\r\n\r\n"] * STREAMS
    assert (code, errors) == (0, "")


class PrivateServer(Server):
    """A dashboard with users."""

    def __init__(self, home: Path) -> None:
        self.users = home / "users.toml"
        names = ("reader", "leaver", "other")
        self.tokens = {name: add_user(self.users, name, "viewer") for name in names}
        super().__init__(home)


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateServer]:
    server = PrivateServer(tmp_path_factory.mktemp("private"))
    yield server
    server.process.kill()
    server.process.communicate()


def events_of(response: httpx.Response) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def test_a_logout_ends_the_streams_of_the_session(private: PrivateServer) -> None:
    with private.client() as client:
        refused = client.get("/live?on=runs")
        assert (refused.status_code, refused.json()["detail"]) == (401, "log in first")
        form = {"token": private.tokens["reader"], "next": "/runs"}
        assert client.post("/login", data=form).headers["location"] == "/runs"
        csrf = csrf_of(client)
        with client.stream("GET", "/live?on=runs") as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            assert response.headers["cache-control"] == "no-store"
            assert "content-encoding" not in response.headers
            events = events_of(response)
            assert next(events)[0] == "snapshot"
            assert client.post("/logout", data={"csrf": csrf}).headers["location"] == "/login"
            assert [name for name, _ in events][-1] == "end"


def test_a_removed_user_loses_the_stream_and_the_pages(private: PrivateServer) -> None:
    headers = {"Authorization": f"Bearer {private.tokens['leaver']}"}
    users = private.users.read_text()
    with (
        private.client() as client,
        client.stream("GET", "/live?on=runs", headers=headers) as response,
    ):
        events = events_of(response)
        assert next(events)[0] == "snapshot"
        head, _, rest = users.partition("[leaver]")
        private.users.write_text(f"{head}[other]{rest.partition('[other]')[2]}")
        assert [name for name, _ in events][-1] == "end"
        assert client.get("/api/v1/runs", headers=headers).status_code == 401
        headers = {"Authorization": f"Bearer {private.tokens['other']}"}
        assert client.get("/api/v1/runs", headers=headers).status_code == 200
        # A file that is not valid lets nobody in.
        private.users.write_text("[other")
        assert client.get("/api/v1/runs", headers=headers).status_code == 401
        private.users.write_text(users)
        assert client.get("/api/v1/runs", headers=headers).status_code == 200


def test_the_streams_of_an_address_are_limited_until_one_ends(
    client: TestClient[Litestar],
) -> None:
    live = client.app.state["live"]
    held = [live.take_slot("", "testclient") for _ in range(MAX_OF_ADDRESS)]
    refused = client.get("/live?on=runs")
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0
    assert live.take_slot("", "testclient") is None
    assert live.take_slot("", "another address") is not None
    held.pop()
    assert live.take_slot("", "testclient") is not None


def test_a_user_has_fewer_streams_than_an_address(client: TestClient[Litestar]) -> None:
    live = client.app.state["live"]
    held = [live.take_slot("ana", f"address {n}") for n in range(MAX_OF_USER)]
    assert all(held)
    assert live.take_slot("ana", "one more") is None
    assert live.take_slot("bob", "one more") is not None


@pytest.mark.parametrize(
    "query",
    ["", "on=elsewhere", "r=a&r=a", "&".join(f"r={n}" for n in range(40)), f"r={'x' * 400}"],
)
def test_a_wrong_query_is_refused(client: TestClient[Litestar], query: str) -> None:
    answer = client.get(f"/live?{query}")
    assert answer.status_code == 400
    assert answer.headers["content-type"].startswith("application/json")


def test_a_stream_of_an_unknown_rollout_is_not_found(client: TestClient[Litestar]) -> None:
    assert client.get("/r/nothing/live").status_code == 404
