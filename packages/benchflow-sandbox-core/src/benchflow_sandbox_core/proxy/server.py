"""The forward proxy: what a box without a network reaches its allowed hosts by."""

import asyncio
import socket
from typing import Self

from benchflow_sandbox_core.forward import both_ways
from benchflow_sandbox_core.relay.exchange import exchange
from benchflow_sandbox_core.relay.head import Head, HeadError
from benchflow_sandbox_core.relay.serving import Serving, refuse

from .allowlist import Allowlist, RefusedError
from .target import Target

_OWN = {"host", "proxy-authorization", "proxy-authenticate"}


class Proxy(Serving):
    """Serves one listener inside of a box until it is closed.

    Each connection carries one plain request, or a tunnel. Names are resolved here, and the
    address that was checked is the one that is connected to. What goes through a tunnel is
    not looked at.
    """

    def __init__(self, allowed: Allowlist) -> None:
        super().__init__()
        self._allowed = allowed

    @classmethod
    async def start(cls, listener: socket.socket, allowed: Allowlist) -> Self:
        """Serve `listener`, which may live in another network namespace."""
        return await cls(allowed).listen(listener)

    async def switch(self, allowed: Allowlist) -> None:
        """Lead to `allowed` from now on, and end every connection that is open."""
        # First, so that who was let in and has not asked yet is asked by the new list.
        self._allowed = allowed
        await self._hang_up()

    async def answer(
        self, raw: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Lead one request, or a tunnel, to where it asks for."""
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
            await refuse(writer, "403 Forbidden", f"{error}: this sandbox reaches some hosts only")
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
    kept = head.without(_OWN)
    own = {"Host": target.authority, "Connection": "close"}
    return Head(f"{target.method} {target.path} HTTP/1.1", kept.fields).encode(own)
