"""The relay: a listener inside the sandbox, served by the host, for one upstream.

The relay of a door with a credential refuses all requests but those of model APIs, or of a tool
server. An upstream that echoes a request, as for TRACE, would reveal the credential to the inside.
"""

import asyncio
import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from benchflow_contracts.door import Door, DoorServes
from benchflow_contracts.errors import UsageError

from .exchange import exchange
from .head import MAX_HEAD, Head, HeadError, split_request
from .request_server import RequestServer, refuse

_NAME = r"(?!\.+(?:/|$))[A-Za-z0-9._:@-]+"
_VERSION = r"(?:/v[0-9]+[a-z0-9]*)?"
_MODELS = rf"/models(?:/{_NAME})*"
_CALLS = (
    "/chat/completions",
    "/responses",
    "/messages",
    "/messages/count_tokens",
    rf"/models(?:/{_NAME})+:(?:generateContent|streamGenerateContent|countTokens)",
)
_NEEDED = {
    "POST": re.compile(f"{_VERSION}(?:{'|'.join(_CALLS)})"),
    "GET": re.compile(f"{_VERSION}{_MODELS}"),
}
# Some agents check for a server before their first call.
_PROBES = {"GET", "HEAD"}
_TOOLS = "/mcp"
# A client also asks for a stream, and ends a session. It expects the server's own refusal.
_TOOL_METHODS = {"POST", "GET", "DELETE"}
_CONNECT_SECONDS = 30.0
OVERRIDES = frozenset({"x-http-method", "x-http-method-override", "x-method-override"})
"""Headers, in lower case, that change the method of a request for some servers."""


def needs_credential(method: str, target: str, serves: DoorServes) -> bool:
    """Return whether a request is a call or lists models; false for a bare probe, and for `http`.

    Raises:
        HeadError: Model APIs, or the tool server, do not need the request.
    """
    path = target.partition("?")[0]
    if serves == "http":
        return False
    if serves == "tools":
        if method in _TOOL_METHODS and target == _TOOLS:
            return True
        raise HeadError(f"{method} {path} is not a request of a tool server")
    if (needed := _NEEDED.get(method)) is not None and needed.fullmatch(path):
        return True
    if method in _PROBES and path == "/":
        return False
    raise HeadError(f"{method} {path} is not a request of a model API")


@dataclass(frozen=True, slots=True)
class RelayUpstream:
    """The target of every request, whatever its Host header says."""

    host: str
    port: int
    tls: bool
    prefix: str
    authority: str
    headers: Mapping[str, str]
    serves: DoorServes

    @classmethod
    def of(cls, door: Door) -> Self:
        """Parse the upstream of a door.

        Raises:
            UsageError: The URL is not plain http or https.
        """
        try:
            url = urlsplit(door.upstream)
            port = url.port
        except ValueError as error:
            raise UsageError(f"door upstream {door.upstream!r}: {error}") from error
        plain = url.scheme in {"http", "https"} and url.hostname and not url.username
        if not plain or url.query or url.fragment:
            raise UsageError(
                f"door upstream {door.upstream!r} is not a plain http(s) base URL",
                hint="put credentials into the door's headers",
            )
        tls = url.scheme == "https"
        host = url.hostname or ""
        authority = url.netloc
        chosen = port or (443 if tls else 80)
        return cls(
            host, chosen, tls, url.path.rstrip("/"), authority, dict(door.headers), door.serves
        )

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection; verify it if it is TLS. Raise `OSError` or `TimeoutError`."""
        context = ssl.create_default_context() if self.tls else None
        async with asyncio.timeout(_CONNECT_SECONDS):
            return await asyncio.open_connection(self.host, self.port, ssl=context, limit=MAX_HEAD)


class Relay(RequestServer):
    """Serves one listener until it is closed.

    Each connection carries exactly one request to the upstream and one response
    back; the relay adds the credential headers, which never enter the sandbox. Only
    requests that the door serves are forwarded.
    """

    def __init__(self, upstream: RelayUpstream) -> None:
        super().__init__()
        self._upstream = upstream

    @classmethod
    async def start(cls, listener: socket.socket, upstream: RelayUpstream) -> Self:
        """Serve `listener`, which may live in another network namespace."""
        return await cls(upstream).listen(listener)

    async def answer(
        self, raw: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Forward one request to the upstream."""
        try:
            head = Head.parse(raw)
            method, target = split_request(head.start)
            body = head.body(default=0)
        except HeadError as error:
            await refuse(writer, "400 Bad Request", str(error))
            return
        try:
            add_credential = needs_credential(method, target, self._upstream.serves)
        except HeadError as error:
            await refuse(writer, "403 Forbidden", str(error))
            return
        try:
            upstream = await self._upstream.connect()
        except (OSError, TimeoutError) as error:
            await refuse(writer, "502 Bad Gateway", f"the upstream of this door: {error}")
            return
        rewritten = self._rewrite(head, method, target, add_credential=add_credential)
        await exchange((reader, writer), upstream, rewritten, body)

    def _rewrite(self, head: Head, method: str, target: str, *, add_credential: bool) -> bytes:
        credential = self._upstream.headers
        others = head.without({"host", *OVERRIDES, *(name.lower() for name in credential)})
        start = f"{method} {self._upstream.prefix}{target} HTTP/1.1"
        own = {"Host": self._upstream.authority, "Connection": "close"}
        return Head(start, others.fields).encode({**own, **(credential if add_credential else {})})
