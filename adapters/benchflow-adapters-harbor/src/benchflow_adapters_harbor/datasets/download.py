"""Download a registry from a web server."""

import hashlib
import re
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final
from urllib.parse import urldefrag, urlsplit

from benchflow_contracts import TaskError

MAX_BYTES: Final = 64 * 1024 * 1024
_DIGEST = re.compile(r"sha256=([0-9a-f]{64})")
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_SECONDS = 60


def download(source: str, cache: Path) -> bytes:
    """Return the content of an `https://` URL. `URL#sha256=HEX` is checked and cached.

    Plain `http://` needs the digest, except on the loopback address.

    Raises:
        TaskError: The URL cannot be fetched, is larger than 64 MiB, or has another digest.
    """
    url, fragment = urldefrag(source)
    digest = _expected_digest(source, fragment)
    cached = cache / "registries" / digest if digest else None
    if cached is not None and cached.is_file():
        data = cached.read_bytes()
        if hashlib.sha256(data).hexdigest() == digest:
            return data
    if digest is None:
        _check_private(url)
    data = _fetch(url, trusted=digest is not None)
    if cached is not None:
        actual = hashlib.sha256(data).hexdigest()
        if actual != digest:
            raise TaskError(f"has the sha256 {actual}", where=url, hint="correct the digest")
        _save(cached, data)
    return data


def _expected_digest(source: str, fragment: str) -> str | None:
    if not fragment:
        return None
    actual = _DIGEST.fullmatch(fragment)
    if actual is None:
        raise TaskError(f"{source!r} has an invalid digest", hint="#sha256=HEX")
    return actual.group(1)


def _check_private(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and parts.hostname not in _LOOPBACK:
        hint = "use https://, or append #sha256=HEX"
        raise TaskError("an http download can be changed in transit", where=url, hint=hint)


def _fetch(url: str, *, trusted: bool) -> bytes:
    import httpx  # noqa: PLC0415 - its import takes longer than a listing

    data = bytearray()
    try:
        with httpx.stream("GET", url, follow_redirects=True, timeout=_SECONDS) as response:
            response.raise_for_status()
            if not trusted:
                _check_private(str(response.url))
            for block in response.iter_bytes():
                data += block
                if len(data) > MAX_BYTES:
                    raise TaskError("larger than 64 MiB", where=url, hint="split it")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        hint = "check the URL and the network"
        raise TaskError(f"cannot be fetched: {error}", where=url, hint=hint) from error
    return bytes(data)


def _save(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, delete=False) as stream:
        stream.write(data)
    Path(stream.name).replace(path)
