"""Who may send requests to a server of tasks, whatever its application is."""

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from benchflow_contracts import UsageError
from benchflow_serve import TaskServerAddress
from benchflow_serve.security import HostPolicy, TokenVerifier, token_digest
from benchflow_serve.task_process import AccessGate
from benchflow_tool_sessions import BaseTaskServer, TaskServerSettings

TOKEN = "a-token-of-the-operator"
VERIFIER = TokenVerifier([token_digest(TOKEN)])


class Server(BaseTaskServer):
    """A server whose application is not opened."""

    def open_app(self, settings: TaskServerSettings) -> AbstractAsyncContextManager[Any]:
        raise NotImplementedError


class Tokenless(Server):
    token_header = None


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"in"})


def status(path: str = "/", *, url: str = "http://127.0.0.1", **gate: Any) -> int:
    """Return the status of a request to an application behind a gate."""
    headers: dict[str, str] = gate.pop("headers", {})

    async def ask() -> int:
        guarded = AccessGate(app, HostPolicy(("named.org",)), **gate)
        transport = httpx.ASGITransport(app=guarded)
        async with httpx.AsyncClient(transport=transport, base_url=url) as client:
            return (await client.get(path, headers=headers)).status_code

    return asyncio.run(ask())


def test_a_request_needs_the_token_in_the_header_of_the_protocol() -> None:
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert status(headers=bearer, verifier=VERIFIER) == 200
    assert status(headers={"Authorization": TOKEN}, verifier=VERIFIER) == 401
    assert status(verifier=VERIFIER) == 401
    assert status(headers={"X-Key": TOKEN}, verifier=VERIFIER, header="X-Key") == 200
    assert status(headers={"X-Key": "no"}, verifier=VERIFIER, header="X-Key") == 401
    assert status(headers=bearer, verifier=VERIFIER, header="X-Key") == 401
    assert status() == 200


def test_only_the_public_paths_need_no_token() -> None:
    assert status("/health", verifier=VERIFIER, public_paths=("/health",)) == 200
    assert status("/health/", verifier=VERIFIER, public_paths=("/health",)) == 401
    assert status("/Health", verifier=VERIFIER, public_paths=("/health",)) == 401


def test_pages_of_other_sites_are_refused_before_the_token() -> None:
    assert status(url="http://example.org") == 421
    assert status(url="http://named.org") == 200
    assert status(headers={"Origin": "http://example.org"}) == 403
    assert status(headers={"Origin": "http://localhost:3000"}) == 200
    assert status("/health", url="http://example.org", public_paths=("/health",)) == 421


@pytest.mark.parametrize(
    "header", [(b"host", b"example.org"), (b"origin", b"http://example.org"), (b"x", b"y")]
)
def test_a_refused_websocket_is_closed_before_it_opens(header: tuple[bytes, bytes]) -> None:
    sent: list[Any] = []

    async def ask() -> None:
        async def receive() -> Any:
            return {"type": "websocket.connect"}

        async def send(message: Any) -> None:
            sent.append(message)

        host = () if header[0] == b"host" else ((b"host", b"127.0.0.1:8000"),)
        scope = {"type": "websocket", "path": "/ws", "headers": [*host, header]}
        await AccessGate(app, HostPolicy(()), verifier=VERIFIER)(scope, receive, send)

    asyncio.run(ask())
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_other_machines_need_a_token_or_a_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BENCHFLOW_SERVE_TOKEN", raising=False)
    tokens = tmp_path / "tokens"
    tokens.write_text(f"sha256:{token_digest(TOKEN)}\n")
    assert TaskServerAddress().verifier(Server()) is None
    found = TaskServerAddress("0.0.0.0", token_file=tokens).verifier(Server())
    assert found is not None
    assert found.allows(f"Bearer {TOKEN}")
    assert TaskServerAddress("0.0.0.0", allow_remote=True).verifier(Tokenless()) is None
    refused = [
        (TaskServerAddress("0.0.0.0"), Server()),
        (TaskServerAddress("0.0.0.0", allow_remote=True), Server()),
        (TaskServerAddress("192.0.2.1"), Tokenless()),
        (TaskServerAddress(token_file=tokens), Tokenless()),
    ]
    for address, server in refused:
        with pytest.raises(UsageError):
            address.verifier(server)


def test_the_token_of_the_environment_is_needed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHFLOW_SERVE_TOKEN", TOKEN)
    found = TaskServerAddress("0.0.0.0").verifier(Server())
    assert found is not None
    assert found.allows(f"Bearer {TOKEN}")
    assert not found.allows("Bearer ")
