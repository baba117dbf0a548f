"""The upstream of a route, and the client that calls it."""

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO

import aiohttp
from benchflow_contracts import Endpoint, PolicyEndpoint
from benchflow_contracts.gateway import UpstreamProtocol
from yarl import URL

from .documents import Document, as_document, text_of
from .errors import RefusedError
from .limits import Limits
from .wires import CHAT, GEMINI, MESSAGES, Wire

UpstreamKind = UpstreamProtocol

_VERSION = re.compile(r"/v\d+\w*$")
_SENT = {"accept", "anthropic-beta", "anthropic-version", "openai-beta"}
_SHOWN = {"retry-after", "retry-after-ms", "request-id", "x-request-id", "x-should-retry"}
_POLICY = ("x-policy-version", "x-model-version")
_KEYS = {"authorization", "x-api-key", "api-key", "x-goog-api-key"}
_MIN_SECRET, _MIN_KEY = 6, 16
_REDACTED = "[redacted]"


@dataclass(frozen=True, slots=True)
class Upstream:
    """An upstream and its protocol."""

    endpoint: Endpoint
    kind: UpstreamKind = "same"
    model: str | None = None
    """The model to request, instead of the agent's model."""
    policy_version: str | None = None
    """The version of the weights, if it is known."""

    def at(self, endpoint: Endpoint) -> "Upstream":
        """Return an upstream at `endpoint`: with its own protocol and model, if it has them."""
        if isinstance(endpoint, PolicyEndpoint):
            version = endpoint.policy_version
            return Upstream(endpoint, endpoint.protocol, endpoint.model, version)
        return Upstream(endpoint, self.kind, self.model)

    def wire(self, front: Wire) -> Wire:
        """Return the wire of this upstream for a call in `front`."""
        if self.kind == "same":
            return front
        return MESSAGES if self.kind == "anthropic" else CHAT

    def url(self, path: str, wire: Wire = CHAT) -> URL:
        """Return the address of `path`. A base without a version gets the version of `wire`."""
        base = self.endpoint.url.rstrip("/")
        if not _VERSION.search(base):
            base += f"/{wire.version}"
        return URL(base + path, encoded=True)

    def headers(self, given: Mapping[str, str], wire: Wire | None) -> dict[str, str]:
        """Return the headers to send: some of the agent's headers, and the credentials."""
        sent = {key: value for key, value in given.items() if key.lower() in _SENT}
        sent |= {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        if wire is MESSAGES and not any(key.lower() == "anthropic-version" for key in sent):
            sent["anthropic-version"] = "2023-06-01"
        credentials = (
            _google_key(self.endpoint.headers) if wire is GEMINI else dict(self.endpoint.headers)
        )
        names = {key.lower() for key in credentials}
        return {k: v for k, v in sent.items() if k.lower() not in names} | credentials

    def redact(self, text: str) -> str:
        """Return `text` without the credentials: some servers quote a refused key."""
        for value in self.endpoint.headers.values():
            for secret in (value, *value.split()):
                if len(secret) >= _MIN_SECRET:
                    text = text.replace(secret, _REDACTED)
        return text

    def without_keys(self, data: bytes) -> bytes:
        """Return an answer without the API keys, because an upstream may echo its request.

        Only long keys are removed: a short value may also occur in a model's text.
        """
        for name, value in self.endpoint.headers.items():
            key = value.rpartition(" ")[2].encode()
            if name.lower() in _KEYS and len(key) >= _MIN_KEY and key in data:
                data = data.replace(key, _REDACTED.encode())
        return data


def _google_key(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers with the API key in Google's header: keys are not bearer tokens there."""
    lower = {name.lower(): value for name, value in headers.items()}
    key = lower.get("x-goog-api-key") or lower.get("x-api-key")
    if key is None:
        return dict(headers)
    others = {k: v for k, v in headers.items() if k.lower() not in _KEYS}
    return {**others, "x-goog-api-key": key}


class Client:
    """Calls upstreams. One pool of connections for all routes."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # Shorter than the 5 s after which common servers close an idle connection.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4)
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=limits.connect_sec, sock_read=limits.idle_sec
        )
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()
        )

    @asynccontextmanager
    async def call(
        self, method: str, url: URL, headers: Mapping[str, str], data: bytes | None
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """Send a request. Leaving the block early cuts the connection.

        Raises:
            RefusedError: The upstream cannot be reached, or closed the connection.
        """
        try:
            answer = await self._send(method, url, headers, data)
            async with answer:
                yield answer
        except TimeoutError as error:
            raise RefusedError("upstream", 504, "the model endpoint did not answer") from error
        except (aiohttp.ClientError, ValueError, OSError) as error:
            # The text of such an error may have the URL, which may have a credential.
            message = f"the model endpoint failed ({type(error).__name__})"
            raise RefusedError("upstream", 502, message) from error

    async def _send(
        self, method: str, url: URL, headers: Mapping[str, str], data: bytes | None
    ) -> aiohttp.ClientResponse:
        for last in (False, True):
            try:
                # The body is written in pieces, so it is not copied as a whole.
                body = None if data is None else BytesIO(data)
                return await self._session.request(
                    method, url, data=body, headers=headers, allow_redirects=False
                )
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                # The server closed an idle connection just before its use, so try once more.
                if last or isinstance(error, aiohttp.ClientConnectorError):
                    raise
        raise AssertionError

    async def read(self, answer: aiohttp.ClientResponse) -> bytes:
        """Return the whole body. Raise `RefusedError` if it is too long."""
        data = bytearray()
        async for piece in answer.content.iter_any():
            data += piece
            if len(data) > self._limits.response_bytes:
                raise RefusedError("upstream", 502, "the model's answer is too long")
        return bytes(data)

    async def aclose(self) -> None:
        """Close every connection. Idempotent."""
        await self._session.close()


def shown_headers(answer: aiohttp.ClientResponse) -> dict[str, str]:
    """Return the upstream's headers for the agent."""
    return {key: value for key, value in answer.headers.items() if key.lower() in _SHOWN}


def retry_after(answer: aiohttp.ClientResponse) -> float | None:
    """Return the seconds that the upstream asks to wait, or `None`. A date is ignored."""
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        text = answer.headers.get(name, "")
        if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text, re.ASCII):
            return float(text) / unit
    return None


def policy_version(answer: aiohttp.ClientResponse) -> str | None:
    """Return the version of the weights from a header, or `None`."""
    return next((answer.headers[name] for name in _POLICY if name in answer.headers), None)


def end_version(body: Document) -> str | None:
    """Return the field `policy_version` of a body or of its last chunk, or `None`."""
    return text_of(body.get("policy_version")) or None


def error_message(body: Document) -> str:
    """Return the message of an upstream's error body."""
    error = body.get("error")
    return text_of(error) or text_of(as_document(error).get("message")) or "an error"
