"""A client that opens a stream of events and never reads, on a real socket."""

import asyncio
import socket
import tracemalloc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import pytest
import uvicorn
from benchflow_serve.event_stream import cut_stalled, event_response
from benchflow_serve.job_events import JobEventLog
from benchflow_serve.store import ServiceStore
from litestar import Litestar, get
from litestar.params import HeaderParameter
from litestar.response import ServerSentEvent

EVENTS, BYTES = 3000, 4000
"""12 MB in all: more than the buffers of both ends of a connection."""


@asynccontextmanager
async def serving(log: JobEventLog) -> AsyncGenerator[uvicorn.Server]:
    @get("/events")
    async def events(
        last_event_id: Annotated[str, HeaderParameter(name="Last-Event-ID")] = "0",
    ) -> ServerSentEvent:
        return event_response(
            lambda after, beat_sec: log.follow(after, lambda: False, beat_sec), last_event_id
        )

    config = uvicorn.Config(Litestar([events], logging_config=None), port=0, log_level="critical")
    server, listener = uvicorn.Server(config), config.bind_socket()
    cut_stalled(listener, 1)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(server.serve([listener]))
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event
            await asyncio.sleep(0.01)
        yield server
        server.force_exit = server.should_exit = True
        await running


def open_stream(server: uvicorn.Server, after: int = 0) -> socket.socket:
    """Ask for the events after a number, with a small buffer. Nothing is read."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(server.servers[0].sockets[0].getsockname())
    client.sendall(f"GET /events HTTP/1.1\r\nHost: x\r\nLast-Event-ID: {after}\r\n\r\n".encode())
    return client


def read_ids(client: socket.socket, most: int | None = None) -> list[int]:
    """Return the ids of whole messages, up to the end of the connection or a number of them."""
    data, ids = b"", list[int]()
    client.settimeout(30)
    with client:
        while most is None or len(ids) < most:
            try:
                chunk = client.recv(65536)
            except ConnectionResetError:
                break
            if not chunk:
                break
            data += chunk
            *whole, data = data.split(b"\r\n\r\n")
            lines = [line for part in whole for line in part.splitlines()]
            ids += [int(line[4:]) for line in lines if line.startswith(b"id: ")]
    return ids


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the option is of Linux")
def test_a_reader_that_stops_is_cut_and_its_stream_resumes(tmp_path: Path) -> None:
    async def check() -> None:
        store = ServiceStore(tmp_path / "serve.db")
        log = JobEventLog(store, "one")
        async with serving(log) as server:
            client = open_stream(server)
            while not server.server_state.connections:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            tracemalloc.start()
            for number in range(EVENTS):
                # The write returns, whatever the reader does.
                log.add("started", reason="x" * BYTES)
                if number % 100 == 0:
                    await asyncio.sleep(0)
            async with asyncio.timeout(40):
                while server.server_state.connections:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak < EVENTS * BYTES / 2, "the events were collected for the reader"
            received = await asyncio.to_thread(read_ids, client)
            assert received == list(range(1, len(received) + 1))
            assert len(received) < EVENTS
            last = len(received)
            resumed = await asyncio.to_thread(read_ids, open_stream(server, last), EVENTS - last)
            assert resumed == list(range(last + 1, EVENTS + 1))
        store.close()

    asyncio.run(asyncio.wait_for(check(), 100))
