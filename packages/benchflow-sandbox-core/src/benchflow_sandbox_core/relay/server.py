"""The relay: a listener inside the sandbox, served by the host, for one upstream."""

import asyncio
import socket
from typing import Self

from .allowed_requests import OVERRIDES, needs_credential
from .exchange import exchange
from .head import Head, HeadError, split_request
from .request_server import RequestServer, refuse
from .upstream import RelayUpstream


class Relay(RequestServer):
    """Serves one listener until it is closed.

    Each connection carries exactly one request to the upstream and one response
    back; the relay adds the credential headers, which never enter the sandbox. Only
    requests of model APIs are forwarded.
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
            keyed = needs_credential(method, target)
        except HeadError as error:
            await refuse(writer, "403 Forbidden", str(error))
            return
        try:
            upstream = await self._upstream.connect()
        except (OSError, TimeoutError) as error:
            await refuse(writer, "502 Bad Gateway", f"the upstream of this door: {error}")
            return
        rewritten = self._rewrite(head, method, target, keyed=keyed)
        await exchange((reader, writer), upstream, rewritten, body)

    def _rewrite(self, head: Head, method: str, target: str, *, keyed: bool) -> bytes:
        added = self._upstream.headers
        kept = head.without({"host", *OVERRIDES, *(name.lower() for name in added)})
        start = f"{method} {self._upstream.prefix}{target} HTTP/1.1"
        own = {"Host": self._upstream.authority, "Connection": "close", **(added if keyed else {})}
        return Head(start, kept.fields).encode(own)
