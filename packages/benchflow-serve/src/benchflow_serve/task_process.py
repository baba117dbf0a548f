"""The process of a `TaskServer`: who may send requests, and the end of all sessions."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchflow_contracts import UsageError
from benchflow_engine.http_listener import open_listener, url_of
from benchflow_tool_sessions import HasClientFiles, TaskServer, TaskServerSettings

from .asgi_server import BACKLOG, AsgiServer, serve_until_signal
from .security import HostPolicy, TokenVerifier, is_loopback, read_token_file

_AUTHORIZATION: Final = "authorization"
_POLICY_VIOLATION: Final = 1008

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class TaskServerAddress:
    """Where a server listens, and who may send requests."""

    host: str = "127.0.0.1"
    port: int | None = None
    """`None` is the usual port of the protocol; 0 takes a free one."""
    token_file: Path | None = None
    """File of tokens, one a line (default: $BENCHFLOW_SERVE_TOKEN)."""
    allow_remote: bool = False
    """Whether other machines may reach a server whose protocol does not carry a token."""

    def verifier(self, server: TaskServer) -> TokenVerifier | None:
        """Return the verifier of tokens; `None` if a request needs none.

        Raises:
            UsageError: Other machines would reach the server without a token, a token is malformed,
                or the protocol does not carry tokens.
        """
        if server.token_header is not None:
            if self.allow_remote:
                raise UsageError(
                    "--allow-remote is only for protocols without a token",
                    hint="name a --token-file",
                )
            found = read_token_file(self.token_file)
            if found is None and not is_loopback(self.host):
                raise UsageError(
                    f"--host {self.host} without a token lets any machine run tasks here",
                    hint="name a --token-file, or listen on 127.0.0.1",
                )
            return found
        if self.token_file is not None:
            raise UsageError(
                "clients of this protocol cannot send a token", hint="leave out --token-file"
            )
        if not is_loopback(self.host) and not self.allow_remote:
            raise UsageError(
                f"--host {self.host} lets any machine run tasks here: clients of this protocol"
                " cannot send a token",
                hint="listen on 127.0.0.1, or pass --allow-remote on a network that only your own"
                " machines reach",
            )
        return None


@dataclass(frozen=True, slots=True)
class RunningTaskServer:
    """The address of a server that answers, and the files that it wrote for its clients."""

    url: str
    needs_token: bool
    files: tuple[Path, ...] = ()


class AccessGate:
    """Refuses requests of other sites and requests without a token, before an application.

    A refused request has the status 401, 403 or 421. A refused WebSocket is closed before it opens.
    """

    def __init__(
        self,
        app: Any,  # noqa: ANN401 - an ASGI application
        hosts: HostPolicy,
        *,
        verifier: TokenVerifier | None = None,
        header: str = _AUTHORIZATION,
        public_paths: Collection[str] = (),
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._verifier = verifier
        self._header = header.lower()
        self._public_paths = frozenset(public_paths)

    async def __call__(self, scope: Mapping[str, Any], receive: _Receive, send: _Send) -> None:
        """Pass the request on, or refuse it."""
        refusal = None if scope["type"] == "lifespan" else self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await _refuse(send, *refusal)
        else:
            await receive()
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})

    def _refusal(self, scope: Mapping[str, Any]) -> tuple[int, str] | None:
        headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        if refusal := self._hosts.refusal(headers):
            return refusal
        if self._verifier is None or scope["path"] in self._public_paths:
            return None
        name = self._header.encode()
        given = [value.decode("latin-1") for key, value in headers if key.lower() == name]
        scheme = "" if self._header == _AUTHORIZATION else "Bearer "
        if len(given) == 1 and self._verifier.allows(scheme + given[0]):
            return None
        return 401, f"{self._header} has no valid token"


async def _refuse(send: _Send, status: int, detail: str) -> None:
    body = json.dumps({"detail": detail}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def serve_tasks(
    server: TaskServer,
    settings: TaskServerSettings,
    address: TaskServerAddress,
    *,
    client_files: Path | None = None,
    on_ready: Callable[[RunningTaskServer], None] = lambda _: None,
) -> None:
    """Serve until SIGINT or SIGTERM. Then all sessions are ended and their sandboxes deleted.

    Args:
        server: The server of a protocol.
        settings: The operator's settings of its sessions.
        address: Where it listens, and who may send requests.
        client_files: A directory for the files that clients of the protocol need.
        on_ready: Receives the address when requests are answered.

    Raises:
        UsageError: The address is in use, or would be open without a token, or the protocol does
            not have files for its clients.
        BenchFlowError: As `TaskServer.open_app`.
    """
    asyncio.run(_serve(server, settings, address, client_files, on_ready))


async def _serve(
    server: TaskServer,
    settings: TaskServerSettings,
    address: TaskServerAddress,
    client_files: Path | None,
    on_ready: Callable[[RunningTaskServer], None],
) -> None:
    verifier = address.verifier(server)
    hosts = HostPolicy((*settings.hosts, address.host))
    port = server.port if address.port is None else address.port
    with open_listener(address.host, port, backlog=BACKLOG) as listener:
        async with server.open_app(settings) as app:
            gate = AccessGate(
                app,
                hosts,
                verifier=verifier,
                header=server.token_header or _AUTHORIZATION,
                public_paths=server.public_paths,
            )
            url = url_of(listener)
            reached = _client_url(url, address.host, settings.hosts)
            files = await _write_files(server, settings, reached, client_files)
            await serve_until_signal(
                AsgiServer(gate),
                listener,
                lambda: on_ready(RunningTaskServer(url, verifier is not None, files)),
            )


def _client_url(url: str, host: str, names: Collection[str]) -> str:
    """Return the address for clients: 0.0.0.0 is not an address that they reach."""
    name = next(iter(names), None)
    if name is None or host not in {"0.0.0.0", "::"}:  # noqa: S104 - compared, not bound
        return url
    return f"http://{name}:{url.rpartition(':')[2]}"


async def _write_files(
    server: TaskServer, settings: TaskServerSettings, url: str, directory: Path | None
) -> tuple[Path, ...]:
    if directory is None:
        return ()
    if not isinstance(server, HasClientFiles):
        raise UsageError(
            "clients of this protocol do not need files", hint="leave out --client-files"
        )
    await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
    return tuple(await server.write_client_files(settings, url, directory))
