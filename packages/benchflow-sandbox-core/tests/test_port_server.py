"""Connections from inside that the host cannot serve."""

import asyncio
from types import SimpleNamespace

import pytest
from benchflow_contracts.errors import HostError
from benchflow_sandbox_core.fifo.port_server import PortServer

REFUSED = 0xFFFFFFFF


class Box:
    """A sandbox whose runner has no open files left. It notes what happens to connections."""

    def __init__(self):
        self.init = self
        self.attached = []

    def streams(self):
        raise HostError("no open files left")

    async def attach(self, connection, stream):
        self.attached.append((connection, stream))


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_connection_that_cannot_be_served_is_closed_inside(index):
    async def main():
        box = Box()
        server = PortServer(box, object(), None)
        box.on_connection(7, index)
        await asyncio.wait(list(server._serving))
        await server.aclose()
        return box.attached

    assert asyncio.run(main()) == [(7, REFUSED)]


def test_forged_connections_do_not_use_up_the_memory():
    async def main():
        box = Box()
        server = PortServer(box, None)
        for connection in range(10_000):
            box.on_connection(connection, 0)
        await asyncio.wait(list(server._serving))
        await server.aclose()
        return len(box.attached)

    assert asyncio.run(main()) == 256


class OfferingBox(Box):
    """A sandbox whose guest takes offers."""

    def __init__(self):
        super().__init__()
        self.on_attached = None
        self.offered, self.closed = [], []

    def streams(self):
        number = len(self.offered) + 1
        return SimpleNamespace(number=number, close=lambda: self.closed.append(number))

    async def offer(self, stream):
        self.offered.append(stream)


def test_each_offered_stream_has_one_connection_and_a_forged_one_is_ignored():
    async def main():
        box = OfferingBox()
        server = PortServer(box, object())
        await asyncio.wait(list(server._serving))
        assert box.offered == [1]
        box.on_attached(9, 0)
        assert not server._serving
        box.on_attached(1, 1)  # nobody serves this port
        await asyncio.wait(list(server._serving))
        assert (box.offered, box.closed) == ([1, 2], [1])
        await server.aclose()
        assert box.closed == [1, 2]

    asyncio.run(main())
