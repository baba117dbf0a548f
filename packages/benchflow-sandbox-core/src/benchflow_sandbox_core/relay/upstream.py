"""The one address that a relay leads to."""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from benchflow_contracts.errors import UsageError
from benchflow_contracts.sandbox import ModelEndpoint

from .head import MAX_HEAD

_CONNECT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class RelayUpstream:
    """Where every request goes, whatever it says."""

    host: str
    port: int
    tls: bool
    prefix: str
    authority: str
    headers: Mapping[str, str]

    @classmethod
    def of(cls, endpoint: ModelEndpoint) -> Self:
        """Parse an endpoint; raise `UsageError` when its URL is not plain http or https."""
        try:
            url = urlsplit(endpoint.upstream)
            port = url.port
        except ValueError as error:
            raise UsageError(f"model upstream {endpoint.upstream!r}: {error}") from error
        plain = url.scheme in {"http", "https"} and url.hostname and not url.username
        if not plain or url.query or url.fragment:
            raise UsageError(
                f"model upstream {endpoint.upstream!r} is not a plain http(s) base URL",
                hint="put credentials into the endpoint's headers",
            )
        tls = url.scheme == "https"
        host = url.hostname or ""
        authority = url.netloc
        chosen = port or (443 if tls else 80)
        return cls(host, chosen, tls, url.path.rstrip("/"), authority, dict(endpoint.headers))

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection, verified when it is TLS; raise `OSError` or `TimeoutError`."""
        context = ssl.create_default_context() if self.tls else None
        async with asyncio.timeout(_CONNECT_SECONDS):
            return await asyncio.open_connection(self.host, self.port, ssl=context, limit=MAX_HEAD)
