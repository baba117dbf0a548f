"""The link over a WebSocket to a port of the sandbox."""

import asyncio
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Self

from benchflow_contracts.errors import SandboxError
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK, WebSocketException

from .cloud import TOKEN_FILE, CloudSandbox
from .records import TOKEN_SIZE
from .transport import PROGRAM, Dial, Transport

PORT = 9419
"""The port of the link inside a sandbox."""
_EVERY_ADDRESS = "::"
_OPEN_SECONDS, _CLOSE_SECONDS = 8.0, 1.0
_MAX_MESSAGE = 1 << 17
_logger = logging.getLogger(__name__)
_silent = logging.getLogger(f"{__name__}.headers")
_silent.disabled = True
"""The library logs headers. They have tokens."""


class WebSocketTransport:
    """One WebSocket to the link. Messages have no meaning: the bytes of all are one stream."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def read(self) -> bytes:
        """Return at least one byte, or `b""` at the end."""
        try:
            while True:
                if data := await self._connection.recv(decode=False):
                    return data
        except ConnectionClosedOK:
            return b""
        except ConnectionClosed as error:
            raise OSError(f"the WebSocket was cut: {error}") from error

    async def write(self, data: bytes) -> None:
        """Write all of `data`."""
        try:
            await self._connection.send(data)
        except ConnectionClosed as error:
            raise OSError(f"the WebSocket was cut: {error}") from error

    async def aclose(self) -> None:
        """Close the connection. Idempotent."""
        with suppress(OSError, WebSocketException):
            await self._connection.close()


class _Connect(connect):
    """Follows no redirect: another server must not get the headers."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class WebSocketListener:
    """The port of the link inside a sandbox.

    Both sides prove that they have the token of the port, and neither sends it. A process of the
    sandbox can connect to the port, or take it after a crash, but it cannot prove anything.
    """

    def __init__(self, port: int, token: bytes) -> None:
        self.port = port
        self._token = token

    @classmethod
    async def start(
        cls, cloud: CloudSandbox, *, port: int = PORT, address: str = _EVERY_ADDRESS
    ) -> Self:
        """Let the link listen on a port of a sandbox that has the link's program.

        Raises:
            SandboxError: The port is in use, or the sandbox did not do it.
        """
        token = secrets.token_bytes(TOKEN_SIZE)
        await cloud.put(TOKEN_FILE, token, 0o600)
        await cloud.run([PROGRAM, "listen", address, str(port)])
        return cls(port, token)

    async def connect(
        self, url: str, headers: Mapping[str, str] | None = None
    ) -> WebSocketTransport:
        """Connect by a URL that leads to the port. `headers` are for the servers before it.

        Raises:
            OSError: The server does not answer, or is not the link of this listener.
        """
        nonce = secrets.token_hex(16)
        own = {"X-Benchflow-Nonce": nonce, "X-Benchflow-Proof": self._proof("host", nonce).hex()}
        try:
            connection = await _Connect(
                "ws" + url.removeprefix("http") if url.startswith("http") else url,
                additional_headers={**(headers or {}), **own},
                compression=None,
                open_timeout=_OPEN_SECONDS,
                close_timeout=_CLOSE_SECONDS,
                ping_interval=None,  # the session has its own pings
                max_size=_MAX_MESSAGE,
                logger=_silent,
            )
        except (WebSocketException, TimeoutError) as error:
            raise OSError(f"no WebSocket to the link: {error}") from error
        try:
            async with asyncio.timeout(_OPEN_SECONDS):
                proof = await connection.recv(decode=False)
        except (WebSocketException, TimeoutError):
            proof = b""
        if not hmac.compare_digest(proof, self._proof("link", nonce)):
            await WebSocketTransport(connection).aclose()
            raise OSError("the server of the link's port did not prove that it is the link")
        return WebSocketTransport(connection)

    def _proof(self, role: str, nonce: str) -> bytes:
        return hmac.digest(self._token, f"{role}{nonce}".encode(), "sha1")


Locate = Callable[[int], Awaitable[tuple[str, Mapping[str, str]]]]
"""Returns the URL of a port of a sandbox, and the headers that the cloud wants."""


class WebSocketDialer:
    """Connects by a port of the sandbox, or by `otherwise` if the port never worked."""

    def __init__(self, cloud: CloudSandbox, locate: Locate, otherwise: Dial) -> None:
        self._cloud, self._locate, self._otherwise = cloud, locate, otherwise
        self._listener: WebSocketListener | None = None
        self._has_worked = self._has_failed = False

    async def dial(self) -> Transport:
        """Connect to the link.

        Raises:
            OSError: The port worked before and cannot be reached now.
            SandboxError: See `locate` and `otherwise`.
        """
        if self._has_failed:
            return await self._otherwise()
        try:
            transport = await self._dial_port()
        except (OSError, SandboxError) as error:
            if self._has_worked:
                raise
            _logger.warning("the link uses text, because its port cannot be reached: %s", error)
            self._has_failed = True
            return await self._otherwise()
        self._has_worked = True
        return transport

    async def _dial_port(self) -> Transport:
        if self._listener is None:
            self._listener = await WebSocketListener.start(self._cloud)
        url, headers = await self._locate(self._listener.port)
        return await self._listener.connect(url, headers)
