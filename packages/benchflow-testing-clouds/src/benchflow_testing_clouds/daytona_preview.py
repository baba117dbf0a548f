"""Daytona's preview URLs of one sandbox: WebSockets to its ports, through a proxy.

The host of a URL of Daytona names the port and the sandbox. Here the path does, because a name
below `localhost` does not resolve everywhere. The proxy has Daytona's token of the sandbox, and
ends connections when the sandbox ends. It serves WebSockets only, and no other HTTP.
"""

import asyncio
import secrets

from benchflow_contracts.errors import SandboxError
from benchflow_contracts.sandbox import Sandbox, SupportsTcpConnect
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from .http import Receive, Scope, Send

_TOKEN = "x-daytona-preview-token"  # noqa: S105 - the name of a header
_OWN = ("host", "upgrade", "connection", "sec-websocket-", "x-daytona-")
"""The beginnings of the headers that are for the proxy."""


class Previews:
    """The ports of one sandbox. Without `are_allowed`, no port can be reached."""

    def __init__(self, sandbox: Sandbox, *, are_allowed: bool) -> None:
        self._sandbox, self._are_allowed = sandbox, are_allowed
        self._connections = set[ClientConnection]()
        self.token = secrets.token_hex(8)

    async def serve(self, port: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Carry one WebSocket to a port."""
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        if headers.get(_TOKEN) != self.token:
            await _refuse(send, 401)
            return
        passed = {name: headers[name] for name in headers if not name.startswith(_OWN)}
        try:
            inner = await self._connect(port, passed)
        except (OSError, SandboxError, WebSocketException):
            await _refuse(send, 502)
            return
        self._connections.add(inner)
        try:
            await receive()
            await send({"type": "websocket.accept"})
            async with asyncio.TaskGroup() as group:
                outward = group.create_task(_outward(inner, send))
                await _inward(receive, inner)
                outward.cancel()
        except* (OSError, WebSocketException):
            pass
        finally:
            self._connections.discard(inner)
            await inner.close()

    async def _connect(self, port: int, headers: dict[str, str]) -> ClientConnection:
        if not self._are_allowed or not isinstance(self._sandbox, SupportsTcpConnect):
            raise ConnectionRefusedError
        return await connect(
            f"ws://127.0.0.1:{port}/",
            sock=await self._sandbox.connect_tcp(port),
            additional_headers=headers,
            compression=None,
            ping_interval=None,
            close_timeout=1,
        )

    def cut(self) -> None:
        """End every connection at once, as a proxy that starts again does."""
        for connection in self._connections:
            connection.transport.abort()


async def _inward(receive: Receive, inner: ClientConnection) -> None:
    while (message := await receive())["type"] == "websocket.receive":
        await inner.send(message.get("bytes") or message.get("text") or b"")


async def _outward(inner: ClientConnection, send: Send) -> None:
    try:
        async for data in inner:
            kind = "text" if isinstance(data, str) else "bytes"
            await send({"type": "websocket.send", kind: data})
    finally:
        await send({"type": "websocket.close", "code": 1001})


async def _refuse(send: Send, status: int) -> None:
    await send({"type": "websocket.http.response.start", "status": status, "headers": []})
    await send({"type": "websocket.http.response.body", "body": b""})
