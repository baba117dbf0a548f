"""The address of a relay's upstream."""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from benchflow_contracts.door import Door
from benchflow_contracts.errors import UsageError

from .head import MAX_HEAD

_CONNECT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class RelayUpstream:
    """The target of every request, whatever its Host header says."""

    host: str
    port: int
    tls: bool
    prefix: str
    authority: str
    headers: Mapping[str, str]

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
        return cls(host, chosen, tls, url.path.rstrip("/"), authority, dict(door.headers))

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection; verify it if it is TLS. Raise `OSError` or `TimeoutError`."""
        context = ssl.create_default_context() if self.tls else None
        async with asyncio.timeout(_CONNECT_SECONDS):
            return await asyncio.open_connection(self.host, self.port, ssl=context, limit=MAX_HEAD)
