"""The gateway for other machines: one listener of this process, with TLS and a token per route.

The URL of a route has no secret. A request is served if one of its headers for keys has the token
of this route, before the token's end. All other requests get the same answer, 401.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import re
import secrets
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web
from benchflow_contracts import Endpoint, UsageError

from .connections import ConnectionLimiter
from .errors import CallBudgetError, RefusedError
from .exchange import send_refusal
from .limits import Limits
from .route import Route
from .server import NAME, RouteKey, Server, listen, port_of, wire_of, without_version

_PATH = re.compile(rf"/r/({NAME})/n/({NAME})(/.*)?")
_KEY_HEADERS = ("x-api-key", "x-goog-api-key")


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class PublicAddress:
    """Where a gateway listens for other machines, and the URL by which they reach it."""

    host: str = "127.0.0.1"
    """An address of this machine. All but the loopback need TLS."""
    port: int = 0
    """0 is a free port."""
    tls_cert: Path | None = None
    """A PEM file with the certificate and its chain."""
    tls_key: Path | None = None
    """A PEM file with the key of the certificate, without a password."""
    url: str | None = None
    """The base URL (default: that of `host` and the port)."""

    def check(self) -> None:
        """Refuse an address that would send tokens without encryption.

        Raises:
            UsageError: The listener needs TLS, or the URL is plain http and not on the loopback.
        """
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError(
                "the gateway has only one of a TLS certificate and its key",
                hint="give both --tls-cert and --tls-key",
            )
        if self.tls_cert is None and not _is_loopback(self.host):
            raise UsageError(
                f"the gateway does not listen on {self.host!r} without TLS",
                hint="give --tls-cert and --tls-key, or listen on 127.0.0.1 behind a server with"
                " TLS",
            )
        if self.url is None:
            address = _address(self.host)
            if not self.host or (address is not None and address.is_unspecified):
                raise UsageError(
                    f"{self.host!r} is not an address that others can reach",
                    hint="give the URL of the gateway: --gateway-url https://HOST:PORT",
                )
            return
        url = urlsplit(self.url)
        is_secure = url.scheme == "https" or _is_loopback(url.hostname or "")
        if url.scheme not in {"http", "https"} or not url.hostname or url.query or url.username:
            raise UsageError(f"{self.url!r} is not the URL of a gateway", hint="https://HOST:PORT")
        if not is_secure:
            raise UsageError(
                f"{self.url!r} would send tokens without encryption",
                hint="use https; http is for the loopback only",
            )

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS of the listener, or None without TLS. Reads files.

        Raises:
            UsageError: A file is missing, is not PEM, or has a password.
        """
        if self.tls_cert is None or self.tls_key is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.tls_cert, self.tls_key, password="")
        except OSError as error:  # also every error of TLS
            raise UsageError(
                f"the TLS files {str(self.tls_cert)!r} and {str(self.tls_key)!r} cannot be used:"
                f" {error}",
                hint="give a PEM certificate and its PEM key without a password",
            ) from error
        return context


class RouteToken:
    """The token of one route. Only its hash is stored."""

    def __init__(
        self, text: str, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._digest = _hash(text)
        self._seconds = seconds
        self._clock = clock
        self._ends = clock() + seconds

    def matches(self, digest: bytes) -> bool:
        """Return whether `digest` is the hash of the token, in constant time."""
        return hmac.compare_digest(self._digest, digest)

    def check_time(self) -> None:
        """Raise `CallBudgetError` after the end of the token."""
        if self._clock() >= self._ends:
            raise CallBudgetError(
                f"the token of the model route was valid for {self._seconds:g} s",
                hint="raise --token-sec, or use --model-access tunnel",
            )


def _hash(text: str) -> bytes:
    # The bytes of a header that are not UTF-8 are surrogates.
    return hashlib.sha256(text.encode(errors="surrogateescape")).digest()


def _presented(headers: Mapping[str, str]) -> Iterator[bytes]:
    """Yield the hash of each key in a request."""
    kind, _, value = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        yield _hash(value.strip())
    for name in _KEY_HEADERS:
        if name in headers:
            yield _hash(headers[name])


@dataclass(frozen=True, slots=True)
class _Entry:
    route: Route
    token: RouteToken
    server: Server


class PublicServer:
    """The listener at one address. The gateways of all rollouts of this process share it."""

    def __init__(self, address: PublicAddress) -> None:
        self._address = address
        self._entries: dict[RouteKey, _Entry] = {}
        self._connections: ConnectionLimiter | None = None
        self._listener: asyncio.Server | None = None
        self._calls_of_route = 0
        self._lock = asyncio.Lock()
        self.users = 0
        """The gateways that use the server."""

    async def start(self, limits: Limits) -> None:
        """Listen, unless the server listens already.

        Raises:
            UsageError: The address is not allowed or is in use, or a TLS file cannot be used.
        """
        async with self._lock:
            if self._listener is not None:
                return
            self._address.check()
            tls = await asyncio.to_thread(self._address.tls)
            self._calls_of_route = limits.public_calls
            connections = ConnectionLimiter(self._handle, tls, limits)
            self._listener = await listen(connections, self._address.host, self._address.port)
            self._connections = connections

    def _url(self) -> str:
        if self._address.url is not None:
            return self._address.url.rstrip("/")
        assert self._listener is not None
        scheme = "http" if self._address.tls_cert is None else "https"
        host = f"[{self._address.host}]" if ":" in self._address.host else self._address.host
        return f"{scheme}://{host}:{port_of(self._listener)}"

    def add(self, key: RouteKey, route: Route, server: Server, text: str, seconds: float) -> str:
        """Serve a route to clients with the token `text`; return its URL."""
        if key in self._entries:
            raise UsageError(
                f"the route {'/'.join(key)} is already public", hint="close the route first"
            )
        self._entries[key] = _Entry(route, RouteToken(text, seconds), server)
        return f"{self._url()}/r/{key[0]}/n/{key[1]}"

    def remove(self, key: RouteKey, route: Route) -> None:
        """Refuse the token of a route from now on."""
        entry = self._entries.get(key)
        if entry is not None and entry.route is route:
            del self._entries[key]

    async def aclose(self) -> None:
        """Stop listening and end every connection. Idempotent."""
        if self._listener is not None:
            self._listener.close()
        if self._connections is not None:
            await self._connections.aclose()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        rest = ""
        try:
            entry, rest = self._find(request)
            assert self._connections is not None
            with self._connections.while_used(request), entry.route.flight():
                self._check_calls(entry.route)
                return await entry.server.serve(request, entry.route, rest)
        except RefusedError as refused:
            return await send_refusal(request, wire_of(rest), refused)

    def _check_calls(self, route: Route) -> None:
        if route.in_flight > self._calls_of_route:
            raise RefusedError("upstream", 503, "too many calls at one time")

    def _find(self, request: web.BaseRequest) -> tuple[_Entry, str]:
        match = _PATH.fullmatch(request.rel_url.raw_path)
        refused = RefusedError("unauthorized", 401, "the token is not valid here")
        entry = None if match is None else self._entries.get((match[1], match[2]))
        token = _WITHOUT_ROUTE if entry is None else entry.token
        # Compare every header, so that the time does not depend on the route or on the order.
        is_known = sum(token.matches(digest) for digest in _presented(request.headers)) > 0
        if match is None or entry is None or not is_known or entry.route.closed:
            if entry is not None:
                entry.route.refused += 1
            raise refused
        try:
            entry.token.check_time()
        except CallBudgetError as error:
            entry.route.fail(error)
            raise refused from error
        return entry, without_version(match[3])


_WITHOUT_ROUTE = RouteToken(secrets.token_urlsafe(), 0)
"""For requests to a route that does not exist."""

_servers: dict[tuple[asyncio.AbstractEventLoop, PublicAddress], PublicServer] = {}


async def acquire_server(address: PublicAddress, limits: Limits) -> PublicServer:
    """Return the server at `address`, and start it for its first user.

    Raises:
        UsageError: See `PublicServer.start`.
    """
    key = asyncio.get_running_loop(), address
    server = _servers.setdefault(key, PublicServer(address))
    server.users += 1
    try:
        await server.start(limits)
    except BaseException:
        await release_server(server, address)
        raise
    return server


async def release_server(server: PublicServer, address: PublicAddress) -> None:
    """Close the server at `address` after its last user."""
    server.users -= 1
    if not server.users:
        _servers.pop((asyncio.get_running_loop(), address), None)
        await server.aclose()


class Publisher:
    """Makes the routes of one gateway public.

    `secret` is a part of each of their tokens, so that a redactor finds all of them.
    """

    def __init__(self, address: PublicAddress, secret: str | None = None) -> None:
        self._address = address
        self._secret = secret or secrets.token_urlsafe(24)
        self._server: PublicServer | None = None
        self._lock = asyncio.Lock()

    async def publish(
        self, key: RouteKey, route: Route, server: Server, limits: Limits, seconds: float
    ) -> Endpoint:
        """Serve a route by `server`; return its URL and the headers with its token."""
        async with self._lock:
            if self._server is None:
                self._server = await acquire_server(self._address, limits)
        text = f"{self._secret}.{secrets.token_urlsafe(24)}"
        url = self._server.add(key, route, server, text, seconds)
        return Endpoint(
            url=url,
            headers={"Authorization": f"Bearer {text}"},
            expires_at=time.time() + seconds,
        )

    def withdraw(self, key: RouteKey, route: Route) -> None:
        """Refuse the token of a route from now on. Idempotent."""
        if self._server is not None:
            self._server.remove(key, route)

    async def aclose(self) -> None:
        """Stop listening if no other gateway uses the server. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            await release_server(server, self._address)
