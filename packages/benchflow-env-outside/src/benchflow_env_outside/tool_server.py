"""An MCP server on the host's loopback, for the tools of one world.

It speaks the part of streamable HTTP that tools need: each request gets one JSON answer, and
sessions and streams are not offered. The package `mcp` would bring a second web server, and a task
group for each request.
"""

import asyncio
import hmac
import json
import secrets
from collections.abc import Mapping
from typing import Any, Final, cast

from aiohttp import web
from benchflow_contracts import Endpoint, EnvironmentError_

from .answers import CheckedAnswer
from .limits import WorldLimits
from .session import WorldSession

PATH: Final = "/mcp"
_VERSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26")
"""The versions of the protocol whose tool calls are the same. The first is the default."""
_BODY_SEC: Final = 30
_IDLE_SEC: Final = 75


class ToolServer:
    """Serves the tools of a session to each client that sends the token."""

    def __init__(self, session: WorldSession, name: str, limits: WorldLimits) -> None:
        self._session = session
        self._name = name
        self._limits = limits
        self._token = secrets.token_urlsafe(32)
        self._waiting = 0
        self._web: web.Server | None = None
        self._listener: asyncio.Server | None = None

    async def start(self) -> Endpoint:
        """Listen on a free port of loopback, and return the address with its token.

        Raises:
            EnvironmentError_: The host does not allow it.
        """
        self._web = web.Server(self._handle, access_log=None, keepalive_timeout=_IDLE_SEC)
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(self._web, "127.0.0.1", 0, backlog=128)
        except OSError as error:
            raise EnvironmentError_(f"the tool server cannot listen: {error}") from error
        port: int = self._listener.sockets[0].getsockname()[1]
        headers = {"Authorization": f"Bearer {self._token}"}
        return Endpoint(url=f"http://127.0.0.1:{port}", headers=headers)

    async def aclose(self) -> None:
        """Stop listening and end every connection. Idempotent."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        if self._web is not None:
            # It waits this long for idle connections, too.
            await self._web.shutdown(timeout=0.05)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        given = request.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            return web.Response(status=401)
        if request.path != PATH:
            return web.Response(status=404)
        if request.method != "POST":
            return web.Response(status=405, headers={"Allow": "POST"})
        if self._waiting >= self._limits.waiting:
            return web.Response(status=429, text="too many requests at one time")
        self._waiting += 1
        try:
            return await self._serve(request)
        finally:
            self._waiting -= 1

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        message = await self._read(request)
        if isinstance(message, web.Response):
            return message
        identifier, method = message.get("id"), message.get("method")
        if not isinstance(method, str) or identifier is None:
            return web.Response(status=202)
        params = message.get("params", {})
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": identifier}
        if not isinstance(identifier, str | int) or not isinstance(params, Mapping):
            error = {"code": -32600, "message": "invalid request"}
            return web.json_response({"jsonrpc": "2.0", "id": None, "error": error}, status=400)
        result = await self._answer(method, cast("Mapping[str, Any]", params))
        if result is None:
            answer["error"] = {"code": -32601, "message": "method not found"}
        else:
            answer["result"] = result
        return web.json_response(answer)

    async def _read(self, request: web.BaseRequest) -> Mapping[str, Any] | web.Response:
        too_large = web.Response(status=413, text="the request is too large")
        if (request.content_length or 0) > self._limits.request_bytes:
            return too_large
        data = bytearray()
        try:
            async with asyncio.timeout(_BODY_SEC):
                async for piece in request.content.iter_any():
                    data += piece
                    if len(data) > self._limits.request_bytes:
                        return too_large
            message = json.loads(data, parse_constant=_refuse_constant)
        except TimeoutError:
            return web.Response(status=408)
        except (ValueError, RecursionError, web.RequestPayloadError):
            return web.Response(status=400, text="the request is not JSON")
        if not isinstance(message, dict):
            return web.Response(status=400, text="the request is not a JSON object")
        return _encodable(cast("dict[str, Any]", message))

    async def _answer(self, method: str, params: Mapping[str, Any]) -> dict[str, Any] | None:
        match method:
            case "initialize":
                asked = params.get("protocolVersion")
                return {
                    "protocolVersion": asked if asked in _VERSIONS else _VERSIONS[0],
                    "capabilities": {"tools": {"listChanged": False}},
                    "serverInfo": {"name": self._name, "version": "1.0.0"},
                }
            case "ping":
                return {}
            case "tools/list":
                return {"tools": self._tools()}
            case "tools/call":
                arguments = params.get("arguments")
                if arguments is None:
                    arguments = {}
                if not isinstance(arguments, dict):
                    return _text_result("The arguments must be an object.", failed=True)
                answer = await self._session.call(
                    str(params.get("name")), cast("dict[str, Any]", arguments)
                )
                return _result(answer)
            case _:
                return None

    def _tools(self) -> list[dict[str, Any]]:
        return [
            {
                "name": tool.name,
                "description": tool.description,
                "inputSchema": dict(tool.input_schema),
            }
            for tool in self._session.tools
        ]


def _result(answer: CheckedAnswer) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = [
        {"type": "text", "text": block}
        if isinstance(block, str)
        else {"type": "image", "data": block.data, "mimeType": block.mime_type}
        for block in answer.blocks
    ]
    return {"content": blocks, "isError": answer.failed}


def _text_result(text: str, *, failed: bool) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": failed}


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _encodable(message: dict[str, Any]) -> Mapping[str, Any]:
    """Return the message with readable text in place of lone surrogates."""
    text = json.dumps(message, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return cast("dict[str, Any]", json.loads(text.encode("utf-8", "replace")))
    return message
