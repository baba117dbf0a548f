"""A connection by two calls of an SDK."""

import asyncio

import pytest
from benchflow_sandbox_remote import LineTransport, QueuedTransport


class Peer:
    """A program of a cloud that sends back what it gets, in lines."""

    def __init__(self):
        self.requests = []
        self.output = asyncio.Queue()
        self.is_asked, self.may_send = asyncio.Event(), asyncio.Event()
        self.is_closed = False

    async def receive(self, put):
        while (text := await self.output.get()) is not None:
            await put(text)

    async def send(self, text):
        self.requests.append(text)
        self.is_asked.set()
        await self.may_send.wait()
        if "fail" in text:
            raise OSError("the network is cut")
        await self.output.put(text)

    async def close(self):
        self.is_closed = True
        raise OSError("the sandbox is gone")

    def transport(self, **options):
        return QueuedTransport(self.receive, self.send, close=self.close, **options)


def test_bytes_come_back_and_what_waits_is_one_request():
    async def main():
        peer = Peer()
        transport = LineTransport(peer.transport())
        await transport.write(b"\0first")
        await peer.is_asked.wait()
        for _ in range(5):
            await transport.write(b"more")
        peer.may_send.set()
        data = b""
        while len(data) < 26:
            data += await transport.read()
        assert data == b"\0first" + 5 * b"more"
        assert len(peer.requests) == 2
        await transport.aclose()
        await transport.aclose()
        assert peer.is_closed

    asyncio.run(main())


@pytest.mark.parametrize("end", ["output", "input", "limit"])
def test_the_end_of_one_direction_is_the_end_of_the_connection(end):
    async def main():
        peer = Peer()
        peer.may_send.set()
        transport = peer.transport(**({"most": 6} if end == "limit" else {}))
        if end != "input":
            await peer.output.put("last")
            await peer.output.put("more" if end == "limit" else None)
            assert await transport.read() == b"last"
        else:
            await transport.write(b"fail")
        assert await transport.read() == b""
        await transport.aclose()

    asyncio.run(main())


def test_a_connection_that_nobody_reads_stops_reading_and_can_be_closed():
    async def main():
        taken = 0

        async def receive(put):
            nonlocal taken
            while True:
                await put("x")
                taken += 1

        peer = Peer()
        transport = QueuedTransport(receive, peer.send, close=peer.close)
        assert await transport.read() == b"x"
        await transport.aclose()
        assert 0 < taken < 1000
        assert peer.is_closed

    asyncio.run(main())
