"""Commands in a pod by the subresource `exec`, protocol v5."""

from typing import Any

import aiohttp
from benchflow_contracts.errors import HostError
from benchflow_sandbox_remote import UNREADABLE
from kubernetes_asyncio.stream import WsApiClient
from kubernetes_asyncio.stream.ws_client import ERROR_CHANNEL, STDERR_CHANNEL, STDOUT_CHANNEL

from .errors import typed_errors

V5: dict[str, Any] = {
    "_preload_content": False,
    "_headers": {"sec-websocket-protocol": "v5.channel.k8s.io"},
}
"""Options of a call. Only protocol v5 can close one stream. Kubernetes has it since 1.30."""
_STDIN, _END_OF_STDIN = b"\x00", b"\xff\x00"
_PIECE, _KEPT = 1 << 15, 500


class PodCommand:
    """One running command. It is also the connection to a link."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._status, self._stderr = b"", b""

    async def read(self) -> bytes:
        """Return the next bytes of stdout, or `b""` at the end."""
        async for message in self._socket:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            received: bytes = message.data
            channel, data = received[0], received[1:]
            if channel == STDOUT_CHANNEL and data:
                return data
            if channel == STDERR_CHANNEL:
                self._stderr = (self._stderr + data)[-_KEPT:]
            if channel == ERROR_CHANNEL:
                self._status = data
        return b""

    async def write(self, data: bytes) -> None:
        """Write all of `data`. Raise `OSError` if the connection has ended."""
        for at in range(0, len(data), _PIECE):
            await self._socket.send_bytes(_STDIN + data[at : at + _PIECE])

    async def finish(self, stdin: bytes) -> tuple[int, str]:
        """Write the whole input; return the exit code and the end of the error output.

        Raises:
            HostError: The connection ended before the command.
        """
        with typed_errors("run a command"):
            await self.write(stdin)
            await self._socket.send_bytes(_END_OF_STDIN)
            while await self.read():
                pass
        try:
            code = WsApiClient.parse_error_data(self._status)
            return code, self._stderr.decode(errors="replace")
        except UNREADABLE as error:
            text = f"Kubernetes: a command did not report its end: {self._status[:_KEPT]!r}"
            raise HostError(text) from error

    async def aclose(self) -> None:
        """Close the connection. Idempotent."""
        await self._socket.close()
