"""Connections from inside that the host cannot serve."""

import asyncio

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


class AcceptingBox:
    """A sandbox that reports open connections."""

    on_accepted = None


class Writer:
    """A writer that notes its abort."""

    def __init__(self):
        self.transport, self.is_aborted = self, False

    def abort(self):
        self.is_aborted = True


class Patient:
    """A server that never ends a connection."""

    async def accept(self, reader, writer):
        await asyncio.Event().wait()


@pytest.mark.parametrize("index", [1, 2, 65535])
def test_an_open_connection_that_nobody_serves_is_closed(index):
    async def main():
        box = AcceptingBox()
        server = PortServer(box, object(), None)
        writer = Writer()
        box.on_accepted(None, writer, index)
        await server.aclose()
        return writer.is_aborted

    assert asyncio.run(main())


def test_a_server_has_64_open_connections_and_refuses_others():
    async def main():
        box = AcceptingBox()
        server = PortServer(box, Patient())
        writers = [Writer() for _ in range(100)]
        for writer in writers:
            box.on_accepted(None, writer, 0)
        refused = sum(writer.is_aborted for writer in writers)
        await server.aclose()
        late = Writer()
        box.on_accepted(None, late, 0)
        return refused, late.is_aborted

    assert asyncio.run(main()) == (36, True)
