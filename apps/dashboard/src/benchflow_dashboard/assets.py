"""The static files: read at the start, served from memory by exact name only."""

import gzip
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Final

from litestar import Request, Response, get
from litestar.exceptions import NotFoundException
from litestar.params import FromPath

from .security.access import PUBLIC

MEDIA_TYPES: Final = {
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
    "ico": "image/x-icon",
    "json": "application/json",
}
"""The types that are served; a licence is not."""


@dataclass(frozen=True, slots=True)
class Asset:
    """One static file."""

    body: bytes
    compressed: bytes
    media_type: str
    digest: str


@cache
def assets() -> Mapping[str, Asset]:
    """Return each static file by its path below `static/`."""
    return dict(_read(files("benchflow_dashboard") / "static", ""))


def _read(directory: Traversable, prefix: str) -> Iterator[tuple[str, Asset]]:
    for item in directory.iterdir():
        name = f"{prefix}{item.name}"
        if item.is_dir():
            yield from _read(item, f"{name}/")
        elif (media_type := MEDIA_TYPES.get(item.name.rsplit(".", 1)[-1])) is not None:
            body = item.read_bytes()
            compressed = gzip.compress(body, 9, mtime=0)
            yield name, Asset(body, compressed, media_type, hashlib.sha256(body).hexdigest()[:16])


def asset_url(name: str) -> str:
    """Return the URL of a static file. A changed file has another URL, so browsers may keep it."""
    return f"/static/{name}?v={assets()[name].digest}"


@get("/static/{name:path}", include_in_schema=False, opt=PUBLIC)
async def serve_asset(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
    """Serve a static file, compressed if the client takes gzip."""
    asset = assets().get(name.removeprefix("/"))
    if asset is None:
        raise NotFoundException("the dashboard does not have this file")
    tag = f'"{asset.digest}"'
    headers = {"ETag": tag, "Vary": "Accept-Encoding"}
    # A vendored file has its version in its name.
    if request.query_params.get("v") == asset.digest or name.startswith("/vendored/"):
        headers["Cache-Control"] = "public, max-age=31536000, immutable"
    if request.headers.get("if-none-match") == tag:
        return Response(b"", status_code=304, headers=headers, media_type=asset.media_type)
    body = asset.body
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        body = asset.compressed
    return Response(body, headers=headers, media_type=asset.media_type)


@get("/favicon.ico", include_in_schema=False, opt=PUBLIC)
async def serve_icon() -> Response[bytes]:
    """Serve the icon that browsers ask for."""
    asset = assets()["icons/favicon.svg"]
    return Response(asset.body, media_type=asset.media_type)
