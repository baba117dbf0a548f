"""The allowed names in the `Host` header: a page of another site must not reach the loopback."""

import re
from collections.abc import Iterable
from typing import Final

from litestar.exceptions import HTTPException
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send

_HOST: Final = re.compile(r"(\[[^\[\]]*\]|[^\[\]:]+)(?::[0-9]*)?")
FOREIGN: Final = "the Host header does not name this dashboard"
LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})


class HostGuard(ASGIMiddleware):
    """Refuse a request whose `Host` is not allowed (DNS rebinding). Ports are not compared.

    Litestar's own check compares the port too, and the port behind a proxy or a tunnel differs.
    """

    def __init__(self, allowed: Iterable[str]) -> None:
        self._allowed = LOOPBACK_NAMES | {name.lower() for name in allowed}

    def allows(self, scope: Scope) -> bool:
        """Return whether the only `Host` header of a request names this dashboard."""
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        return len(hosts) == 1 and host_name(hosts[0].decode("latin-1")) in self._allowed

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Pass the request on, or raise status 421."""
        if not self.allows(scope):
            raise HTTPException(status_code=421, detail=FOREIGN)
        await next_app(scope, receive, send)


def host_name(value: str) -> str:
    """Return the name in a `Host` header, in lower case and without the port; empty if invalid."""
    match = _HOST.fullmatch(value)
    return "" if match is None else match[1].lower()
