"""The forward proxy: a sandbox without a network reaches its allowed hosts through it."""

import asyncio
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Self

from benchflow_contracts.sandbox import SandboxSpec

from benchflow_sandbox_core.port_forward import both_ways
from benchflow_sandbox_core.relay.exchange import exchange
from benchflow_sandbox_core.relay.head import Head, HeadError
from benchflow_sandbox_core.relay.request_server import RequestServer, refuse

from .allowlist import Allowlist, RefusedError

_OWN = {"host", "proxy-authorization", "proxy-authenticate"}


@dataclass(frozen=True, slots=True)
class Target:
    """One request line.

    Source: RFC 9112, section 3.2, the authority and the absolute form.
    """

    method: str
    host: str
    """A name or an address without brackets."""
    port: int
    authority: str
    path: str
    """Empty for a tunnel."""

    @classmethod
    def of(cls, start: str) -> Self:
        """Read a request line.

        Raises:
            HeadError: The line is neither a CONNECT nor has an absolute `http` URI.
        """
        parts = start.split(" ")
        if len(parts) != 3 or parts[2] not in {"HTTP/1.1", "HTTP/1.0"}:
            raise HeadError("a malformed request line")
        method, target, _ = parts
        if method == "CONNECT":
            match = _AUTHORITY.fullmatch(target)
            if match is None:
                raise HeadError("CONNECT needs a host and a port")
            return cls(method, match[1] or match[2], _port(match[3]), target, "")
        match = _ABSOLUTE.fullmatch(target)
        if match is None or not _METHOD.fullmatch(method):
            raise HeadError("this is a proxy: request an absolute http:// URI, or CONNECT")
        port = _port(match[4]) if match[4] else _HTTP
        return cls(method, match[2] or match[3], port, match[1], match[5] or "/")


def _port(text: str) -> int:
    port = int(text)
    if not 0 < port < 65536:
        raise HeadError("an invalid port")
    return port


class Proxy(RequestServer):
    """Serves one listener inside a sandbox until it is closed.

    Each connection carries one plain request, or a tunnel. The proxy resolves
    names and connects to the same address that it checked. It does not read the bytes of a
    tunnel.
    """

    def __init__(self, allowed: Allowlist) -> None:
        super().__init__()
        self._allowed = allowed

    @classmethod
    async def start(cls, listener: socket.socket, allowed: Allowlist) -> Self:
        """Serve `listener`, which may live in another network namespace."""
        return await cls(allowed).listen(listener)

    async def switch(self, allowed: Allowlist) -> None:
        """Use the list `allowed` from now on, and close every open connection."""
        # First, so that the new list applies to accepted connections without a request.
        self._allowed = allowed
        await self._hang_up()

    async def answer(
        self, raw: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Forward one request, or open a tunnel."""
        try:
            head = Head.parse(raw)
            target = Target.of(head.start)
            body = head.body(default=0)
            if not target.path and (body.chunked or body.length):
                raise HeadError("a CONNECT with a body")  # noqa: TRY301
        except HeadError as error:
            await refuse(writer, "400 Bad Request", str(error))
            return
        try:
            outside = await self._allowed.connect(target.host, target.port)
        except RefusedError as error:
            await refuse(writer, "403 Forbidden", f"{error}: only some hosts are allowed")
            return
        except (OSError, TimeoutError) as error:
            await refuse(writer, "502 Bad Gateway", f"{target.host}: {error}")
            return
        if target.path:
            await exchange((reader, writer), outside, _rewrite(head, target), body)
        else:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await both_ways((reader, writer), outside)


def _rewrite(head: Head, target: Target) -> bytes:
    others = head.without(_OWN)
    own = {"Host": target.authority, "Connection": "close"}
    return Head(f"{target.method} {target.path} HTTP/1.1", others.fields).encode(own)


_FIRST_PORT = 8722
_NOT_PROXIED = "localhost,127.0.0.1,::1"


def proxy_port(spec: SandboxSpec) -> int | None:
    """Return the proxy's port on the sandbox's loopback, or `None` without a proxy."""
    if "allowlist" not in {spec.network, *spec.switches}:
        return None
    used = {door.port for door in spec.served_doors}
    return next(port for port in count(_FIRST_PORT) if port not in used)


def proxy_environment(spec: SandboxSpec) -> Mapping[str, str]:
    """Return the proxy variables for programs, in both cases: libraries differ."""
    if spec.network != "allowlist":
        return {}
    url = f"http://127.0.0.1:{proxy_port(spec)}"
    # The provider adds headers to direct requests only.
    direct = ",".join((_NOT_PROXIED, *spec.outside_hosts("egress")))
    variables = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "NO_PROXY": direct}
    return {**variables, **{name.lower(): value for name, value in variables.items()}}


_HOST = r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9._-]{1,254}))"
_AUTHORITY = re.compile(rf"{_HOST}:([0-9]{{1,5}})")
_ABSOLUTE = re.compile(
    rf"[Hh][Tt][Tt][Pp]://({_HOST}(?::([0-9]{{1,5}}))?)(/[\x21-\x22\x24-\x7e]*)?"
)
_METHOD = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HTTP = 80
