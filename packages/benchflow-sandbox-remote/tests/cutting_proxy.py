"""A server between the host and a port of a sandbox, as clouds have one. It can cut connections."""

import asyncio
from contextlib import suppress


class CuttingProxy:
    """Carries TCP to one address. `limits` has, for the next connections, bytes up and down."""

    def __init__(self, host, port):
        self.to = (host, port)
        self.limits = []
        self.writers = set()
        self.carried = bytearray()
        """What hosts sent."""

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/any/path"

    async def start(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _serve(self, reader, writer):
        up, down = self.limits.pop(0) if self.limits else (None, None)
        inner_reader, inner = await asyncio.open_connection(*self.to)
        self.writers |= {writer, inner}
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._copy(reader, inner, up, self.carried))
                group.create_task(self._copy(inner_reader, writer, down, bytearray()))
        except* OSError:
            pass
        finally:
            for each in (writer, inner):
                each.transport.abort()
                self.writers.discard(each)

    async def _copy(self, reader, writer, limit, record):
        while data := await reader.read(1 << 16):
            data, rest = (data, b"") if limit is None else (data[:limit], data[limit:])
            limit = None if limit is None else limit - len(data)
            record += data
            writer.write(data)
            await writer.drain()
            if rest:
                break
        raise ConnectionAbortedError

    def cut(self):
        for writer in set(self.writers):
            writer.transport.abort()

    async def aclose(self):
        self.server.close()
        self.cut()
        with suppress(OSError):
            await self.server.wait_closed()
