"""Listeners on the host through which the doors of a sandbox reach ports that are known later."""

import asyncio
from contextlib import suppress
from typing import Final, Self
from urllib.parse import urlsplit

from benchflow_contracts import Door, UsageError

_FIRST_DOOR: Final = 8730
_DOORS: Final = 8
_CHUNK: Final = 64 * 1024
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


class PortRelays:
    """A door exists before its sandbox, but a harness's endpoint only after the sandbox.

    `async with PortRelays() as relays` opens eight listeners of the loopback, and `doors` lead to
    the listeners. `inside` gives a port of the host one of the doors. A port of verifiers serves a
    model API, the state of tool servers and hooks, each with a secret of its own, so the doors
    pass all requests of HTTP.
    """

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []
        self._targets: dict[int, int] = {}
        """The port of the host behind each door that is in use, by the number of the door."""
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        for index in range(_DOORS):

            async def accept(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, index: int = index
            ) -> None:
                await self._forward(index, reader, writer)

            self._servers.append(await asyncio.start_server(accept, "127.0.0.1", 0))
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    @property
    def doors(self) -> tuple[Door, ...]:
        """The doors for the spec of the sandbox."""
        return tuple(
            Door(
                name=f"host-{index}",
                upstream=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}",
                port=_FIRST_DOOR + index,
                serves="http",
            )
            for index, server in enumerate(self._servers)
        )

    def inside(self, url: str) -> str:
        """Return the address inside the sandbox of a URL of the host. Other URLs stay as they are.

        Raises:
            UsageError: All doors are in use.
        """
        parts = urlsplit(url)
        if parts.hostname not in _LOOPBACK or parts.port is None:
            return url
        for door in range(_DOORS):
            if self._targets.setdefault(door, parts.port) == parts.port:
                return parts._replace(netloc=f"127.0.0.1:{_FIRST_DOOR + door}").geturl()
        raise UsageError(
            f"the sandbox has {_DOORS} doors to the host, and needs one more for {url!r}",
            hint="give the harness fewer tool servers",
        )

    async def _forward(
        self, index: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if (target := self._targets.get(index)) is None:
                return
            away = await asyncio.open_connection("127.0.0.1", target)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(_copy(reader, away[1]))
                    group.create_task(_copy(away[0], writer))
            finally:
                away[1].close()
        except* OSError:
            pass  # The other end is gone, and so is this one.
        finally:
            self._connections.discard(task)
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK):
        writer.write(chunk)
        await writer.drain()
    with suppress(OSError, RuntimeError):
        writer.write_eof()
