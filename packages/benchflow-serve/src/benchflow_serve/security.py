"""Who may send requests: bearer tokens, and the names in the `Host` header."""

import hashlib
import hmac
import os
import re
import secrets
from collections import Counter
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from benchflow_contracts import UsageError
from litestar.connection import ASGIConnection
from litestar.exceptions import HTTPException, NotAuthorizedException
from litestar.handlers import BaseRouteHandler
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send

from .settings import ServeSettings

TOKEN_VARIABLE: Final = "BENCHFLOW_SERVE_TOKEN"  # noqa: S105 - the name of a variable
PUBLIC: Final = {"is_public": True}
"""The `opt` of a handler that needs no token."""
_TOKEN_NAME: Final = "token"  # noqa: S105 - the name of a file
_HASHED: Final = re.compile(r"sha256:([0-9a-f]{64})")
_MIN_CHARS: Final = 16
_HOST: Final = re.compile(r"(\[[^\[\]]*\]|[^\[\]:]+)(?::[0-9]*)?")
_LOOPBACK_NAMES: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
_LENGTHS: Final = frozenset({b"content-length", b"transfer-encoding"})
_SINGLE: Final = _LENGTHS | {b"authorization", b"content-type", b"idempotency-key"}
"""Headers of which a proxy and this server may read different ones."""


class TokenVerifier:
    """Knows the sha256 of each bearer token, and compares in constant time."""

    def __init__(self, digests: Iterable[str] | None) -> None:
        """Prepare the verifier. Without `digests`, each request is allowed."""
        self._digests = None if digests is None else tuple(digests)

    def allows(self, authorization: str) -> bool:
        """Return whether an `Authorization` header has one of the tokens."""
        if self._digests is None:
            return True
        scheme, _, token = authorization.partition(" ")
        given = token_digest(token)
        matches = [hmac.compare_digest(given, known) for known in self._digests]
        return scheme.lower() == "bearer" and any(matches)


def token_digest(token: str) -> str:
    """Return the sha256 of a token, in hex."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def read_tokens(settings: ServeSettings) -> tuple[TokenVerifier, Path | None]:
    """Return the verifier of a service, and the file that has a token in clear text, if known.

    The tokens are of `token_file`, else of $BENCHFLOW_SERVE_TOKEN, else of the file `token` in the
    directory of the service, which is made with a new token.

    Raises:
        UsageError: A token is too short, or the file cannot be read or has no token.
    """
    if settings.no_auth:
        return TokenVerifier(None), None
    if settings.token_file is not None:
        path = settings.token_file
        digests = _digests_in(path)
        return TokenVerifier(digests), path if _has_clear_token(path) else None
    if token := os.environ.get(TOKEN_VARIABLE):
        return TokenVerifier([_digest_of(token, f"${TOKEN_VARIABLE}")]), None
    path = settings.directory / _TOKEN_NAME
    if not path.exists():
        _make_token(path)
    return TokenVerifier(_digests_in(path)), path


def read_token_file(path: Path | None) -> TokenVerifier | None:
    """Return the verifier of a file of tokens, else of $BENCHFLOW_SERVE_TOKEN, if one is set.

    Raises:
        UsageError: A token is too short, or the file cannot be read or has no token.
    """
    if path is not None:
        return TokenVerifier(_digests_in(path))
    if token := os.environ.get(TOKEN_VARIABLE):
        return TokenVerifier([_digest_of(token, f"${TOKEN_VARIABLE}")])
    return None


def is_loopback(host: str) -> bool:
    """Return whether only processes of this machine reach an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _make_token(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    except OSError as error:
        raise UsageError(f"cannot make a token in {str(path)!r}: {error}") from error


def _lines_of(path: Path) -> list[str]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the tokens of {str(path)!r}: {error}") from error
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def _has_clear_token(path: Path) -> bool:
    return _HASHED.fullmatch(_lines_of(path)[0]) is None


def _digests_in(path: Path) -> list[str]:
    digests = [_digest_of(line, repr(str(path))) for line in _lines_of(path)]
    if not digests:
        raise UsageError(f"{str(path)!r} has no token", hint="write one token a line")
    return digests


def _digest_of(line: str, where: str) -> str:
    if match := _HASHED.fullmatch(line):
        return match[1]
    if len(line) < _MIN_CHARS:
        raise UsageError(
            f"a token of {where} has {len(line)} characters",
            hint=f"use at least {_MIN_CHARS}: `openssl rand -hex 32` makes one",
        )
    return token_digest(line)


async def require_token(
    connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler
) -> None:
    """Allow requests with a token. The guard of the whole application.

    It is `async` because Litestar calls another guard in a thread.

    Raises:
        NotAuthorizedException: The request has no valid token.
    """
    if handler.opt.get("is_public"):
        return
    verifier: TokenVerifier = connection.app.state["tokens"]
    if not verifier.allows(connection.headers.get("authorization", "")):
        raise NotAuthorizedException(
            "the request has no valid bearer token", headers={"WWW-Authenticate": "Bearer"}
        )


class HostPolicy:
    """The names of a server. A request with another `Host` or `Origin` is refused.

    So a page of another site in the operator's browser does not reach a server without a token.
    A request whose length or token is ambiguous is refused, too.
    """

    def __init__(self, allowed: Iterable[str]) -> None:
        self._allowed = _LOOPBACK_NAMES | {name.lower() for name in allowed}

    def refusal(self, headers: Iterable[tuple[bytes, bytes]]) -> tuple[int, str] | None:
        """Return the status and the reason if the headers of a request are refused."""
        given = list(headers)
        if reason := _ambiguity(given):
            return 400, reason
        hosts = [value for name, value in given if name == b"host"]
        if len(hosts) != 1 or not self._is_own(hosts[0].decode("latin-1")):
            return 421, "the Host header does not name this server"
        origins = [value.decode("latin-1") for name, value in given if name == b"origin"]
        if not all(self._is_own(origin.partition("://")[2]) for origin in origins):
            return 403, "pages of other sites are refused"
        return None

    def _is_own(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        return match is not None and match[1].lower() in self._allowed


def _ambiguity(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return why a proxy may read a request otherwise than this server does."""
    counts = Counter(name for name, _ in headers)
    if counts.keys() >= _LENGTHS:
        # A proxy that used the other length would take the rest of the body for a request.
        return "the request has a Content-Length and a Transfer-Encoding"
    repeated = [name for name in sorted(_SINGLE & counts.keys()) if counts[name] > 1]
    return f"the request has two headers {repeated[0].decode()!r}" if repeated else None


class HostAllowList(ASGIMiddleware):
    """A `HostPolicy` for an application of Litestar, which also refuses paths that hide letters."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self._policy = HostPolicy(allowed)

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Pass the request on, or raise status 400, 421 or 403."""
        if not scope["path"].isprintable():
            # The `$` of a pattern also matches before a newline.
            raise HTTPException(status_code=400, detail="the path has a control character")
        if refusal := self._policy.refusal(scope["headers"]):
            status, detail = refusal
            # What follows on the connection may be the body of this request.
            headers = {"Connection": "close"}
            raise HTTPException(status_code=status, detail=detail, headers=headers)
        await next_app(scope, receive, send)
