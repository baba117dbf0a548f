"""Small parts of an ASGI server."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


async def body_of(receive: Receive) -> bytes:
    """Return the whole body of a request."""
    data = b""
    while True:
        message = await receive()
        data += bytes(message.get("body", b""))
        if not message.get("more_body"):
            return data


async def respond(
    send: Send, status: int, body: object = None, headers: dict[str, str] | None = None
) -> None:
    """Send a response; `body` is bytes, or becomes JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    content = b"" if body is None else content
    fields = {"content-type": "application/json", **(headers or {})}
    encoded = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": content})


def listen() -> socket.socket:
    """Listen on a free port of the loopback. The caller closes the socket.

    asyncio sends small pieces without a delay only if the socket names its protocol, which
    `socket.create_server` does not. Otherwise an answer may wait 40 ms.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener


@asynccontextmanager
async def serving(app: App) -> AsyncGenerator[str]:
    """Serve an application on a free port of the loopback; yield its URL."""
    with listen() as listener:
        config = uvicorn.Config(
            app,
            ws="websockets-sansio",
            log_config=None,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        running = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = server.force_exit = True
            await running
