"""The HTTP server: finds the route of each request, and serves the request."""

import asyncio
import hmac
import logging
import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from aiohttp import web
from aiohttp.http import HttpProcessingError
from benchflow_contracts import UsageError

from .body import declared_size, read_body
from .errors import CallBudgetError, RefusedError
from .exchange import Exchange, send_refusal
from .limits import Limits
from .route import Route
from .upstream import Client, shown_headers
from .wires import CHAT, GEMINI, MESSAGES, RESPONSES, Wire, gemini_call

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_PATH = re.compile(rf"/r/({NAME})/n/({NAME})/([A-Za-z0-9_-]+)(/.*)?")
_VERSION = re.compile(r"^/v1(?:beta)?(?=/|$)")
_AT: dict[str, Wire] = {wire.path: wire for wire in (CHAT, RESPONSES, MESSAGES)}
_COUNT = "/messages/count_tokens"
# A name of only dots could reach another directory of the upstream, with our credential.
_PLAIN = re.compile(r"/models(/(?!\.+(/|$))[A-Za-z0-9._:-]+)*")
RouteKey = tuple[str, str]


def wire_of(path: str) -> Wire:
    """Return the wire of a request for `path`, for a refusal."""
    if gemini_call(path) is not None:
        return GEMINI
    return MESSAGES if path.startswith("/messages") else CHAT


def route_path(rollout: str, node: str, token: str) -> str:
    """Return the path of a route."""
    return f"/r/{rollout}/n/{node}/{token}"


def without_version(path: str | None) -> str:
    """Return the part of a path behind a route, without the version of the API."""
    return _VERSION.sub("", path or "/")


class _OwnDefects(logging.Filter):
    """Drops what anyone can cause: a request that is not HTTP."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, HttpProcessingError)


_logger = logging.getLogger(__name__)
_logger.addFilter(_OwnDefects())


class _WebServer(web.Server):
    """Calls `on_lost` at the end of each connection."""

    on_lost: Callable[[asyncio.BaseProtocol], None] | None = None

    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        super().connection_lost(handler, exc)
        if self.on_lost is not None:
            self.on_lost(handler)


def web_server(
    handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
    limits: Limits,
    on_lost: Callable[[asyncio.BaseProtocol], None] | None = None,
) -> web.Server:
    """Return a server whose requests `handler` answers. It does not listen yet."""
    server = _WebServer(
        handler,
        handler_cancellation=True,
        access_log=None,
        logger=_logger,
        keepalive_timeout=limits.head_sec,
    )
    server.on_lost = on_lost
    return server


async def listen(
    server: Callable[[], asyncio.BaseProtocol], host: str, port: int
) -> asyncio.Server:
    """Return a listener for `server`. Raise `UsageError` if the address cannot be used."""
    loop = asyncio.get_running_loop()
    try:
        return await loop.create_server(server, host, port, backlog=1024)
    except OSError as error:
        hint = "use port 0 for a free port"
        raise UsageError(f"the gateway cannot listen on {port}: {error}", hint=hint) from error


def port_of(listener: asyncio.Server) -> int:
    """Return the port of a listener."""
    port: int = listener.sockets[0].getsockname()[1]
    return port


class Server:
    """Answers every request. An unknown route and a wrong token get the same answer."""

    def __init__(
        self,
        find: Callable[[RouteKey], tuple[Route, str] | None],
        client: Client,
        limits: Limits,
    ) -> None:
        self._find = find
        self._client = client
        self._limits = limits
        self._web: web.Server | None = None
        self._listener: asyncio.Server | None = None

    async def start(self, port: int) -> int:
        """Listen on loopback and return the port. Raise `UsageError` if the port is in use."""
        self._web = web_server(self._handle, self._limits)
        self._listener = await listen(self._web, "127.0.0.1", port)
        return port_of(self._listener)

    async def aclose(self) -> None:
        """Stop listening and end every connection. Idempotent."""
        if self._listener is not None:
            self._listener.close()
        if self._web is not None:
            await self._web.shutdown(timeout=1)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        rest = ""
        try:
            route, rest = self._find_route(request.rel_url.raw_path)
            with route.flight():
                return await self.serve(request, route, rest)
        except RefusedError as refused:
            return await send_refusal(request, wire_of(rest), refused)

    def _find_route(self, path: str) -> tuple[Route, str]:
        match = _PATH.fullmatch(path)
        entry = self._find((match[1], match[2])) if match is not None else None
        if match is None or entry is None or not hmac.compare_digest(entry[1], match[3]):
            raise RefusedError("not_found", 404, "unknown route")
        route = entry[0]
        if route.closed:
            raise RefusedError("closed", 410, "this route is closed")
        return route, without_version(match[4])

    async def serve(self, request: web.BaseRequest, route: Route, rest: str) -> web.StreamResponse:
        """Serve a request for `rest`, the path behind the route."""
        wire = _AT.get(rest)
        if request.method == "POST" and wire is not None:
            return await Exchange(route, wire, request, self._client, self._limits).run()
        if request.method in {"GET", "HEAD"} and rest in {"", "/"}:
            return web.Response()
        if request.method == "GET" and _PLAIN.fullmatch(rest):
            return await self._pass_plain(request, route, rest, CHAT)
        if (
            request.method == "POST"
            and rest == _COUNT
            and route.upstream.wire(MESSAGES) is MESSAGES
        ):
            return await self._pass_plain(request, route, rest, MESSAGES)
        if request.method == "POST" and (call := gemini_call(rest)) is not None:
            return await self._serve_gemini(request, route, *call)
        raise RefusedError("not_found", 404, f"{request.method} {rest} is not served here")

    async def _serve_gemini(
        self, request: web.BaseRequest, route: Route, model: str, method: str
    ) -> web.StreamResponse:
        if method == "countTokens":
            if route.upstream.wire(GEMINI) is not GEMINI:
                raise RefusedError("not_found", 404, "this upstream does not count tokens")
            return await self._pass_plain(request, route, f"/models/{model}:{method}", GEMINI)
        stream = method.startswith("stream")
        if stream and request.rel_url.query.get("alt") != "sse":
            raise RefusedError("invalid", 400, "a stream needs alt=sse")
        path_fields = {"model": model, "stream": stream}
        exchange = Exchange(
            route, GEMINI, request, self._client, self._limits, path_fields=path_fields
        )
        return await exchange.run()

    async def _pass_plain(
        self, request: web.BaseRequest, route: Route, rest: str, wire: Wire
    ) -> web.StreamResponse:
        """Forward a request that is not a model call. Nothing is recorded."""
        if isinstance(route.error, CallBudgetError):
            raise RefusedError("budget", 429, f"the budget is used up: {route.error}")
        upstream = route.upstream
        headers = upstream.headers(request.headers, upstream.wire(wire))
        async with AsyncExitStack() as stack:
            data = None
            if request.method == "POST":
                await stack.enter_async_context(
                    route.request_bytes.reserve(declared_size(request, self._limits))
                )
                data = await read_body(request, self._limits)
            url = upstream.url(rest, wire)
            answer = await stack.enter_async_context(
                self._client.call(request.method, url, headers, data)
            )
            text = (await self._client.read(answer)).decode(errors="replace")
            kind = answer.content_type
            return web.Response(
                text=upstream.redact(text),
                status=answer.status if answer.status == 200 or answer.status >= 400 else 502,
                headers=shown_headers(answer),
                content_type=kind if kind == "application/json" else "text/plain",
            )
