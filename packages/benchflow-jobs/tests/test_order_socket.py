"""The end of the socket of a job: no connection stays open, and no reply is lost."""

import asyncio
import gc
from pathlib import Path

import pytest
from benchflow_jobs import orders
from benchflow_jobs.control_socket import SOCKET_FILE, serve_orders


@pytest.mark.filterwarnings("error")
def test_the_end_of_a_job_leaves_no_connection_open_and_loses_no_reply(tmp_path: Path) -> None:
    received = asyncio.Event()

    async def receive(_: orders.Order) -> orders.Reply:
        received.set()
        await asyncio.sleep(0)
        return orders.Reply(ok=True, message="done")

    async def run() -> bytes:
        async with serve_orders(tmp_path, receive):
            path = str(tmp_path / SOCKET_FILE)
            silent, silent_writer = await asyncio.open_unix_connection(path)
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(orders.Cancel().model_dump_json().encode() + b"\n")
            await received.wait()
        assert await silent.read() == b""
        reply = await reader.read()
        for each in (silent_writer, writer):
            each.close()
            await each.wait_closed()
        return reply

    # `asyncio.run` would close what is left.
    loop = asyncio.new_event_loop()
    reply = loop.run_until_complete(run())
    assert asyncio.all_tasks(loop) == set()
    loop.close()
    gc.collect()
    assert b"done" in reply
