"""Refuse requests that a page of another site makes a browser send."""

from typing import Final, cast
from urllib.parse import urlsplit

from litestar.exceptions import PermissionDeniedException
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class OriginGuard(ASGIMiddleware):
    """Refuse an unsafe request whose `Origin` is not this server, or that is cross-site.

    Browsers send these headers with each such request. A program without a browser sends
    neither, and no cookie of a user.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Pass the request on, or raise status 403."""
        method = str(cast("dict[str, object]", scope).get("method", "GET"))
        if method not in _SAFE:
            headers = {
                name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
            }
            if not _is_own(headers):
                raise PermissionDeniedException("a page of another site sent this request")
        await next_app(scope, receive, send)


def _is_own(headers: dict[str, str]) -> bool:
    if headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        return False
    origin = headers.get("origin")
    if origin is None:
        return True
    try:
        netloc = urlsplit(origin).netloc
    except ValueError:
        return False
    return netloc.lower() == headers.get("host", "").lower()
