"""Calls from inside through a door, over connections that are cut."""

import asyncio
import socket

import pytest
from benchflow_contracts.door import Door
from benchflow_contracts.sandbox import SandboxSpec

SIZE = 3_000_000
CALL = """
import sys, urllib.request
body = b"".join(b"%d\\n" % number for number in range(500_000))[:3_000_000]
print("ready", flush=True)
for _ in range(2):
    with urllib.request.urlopen(urllib.request.Request(sys.argv[1], body), timeout=100) as answer:
        assert answer.read() == body
print("same", flush=True)
"""


async def echo(reader, writer):
    """Answer a request of `SIZE` bytes with its body."""
    await reader.readuntil(b"\r\n\r\n")
    body = await reader.readexactly(SIZE)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % SIZE + body)
    await writer.drain()
    writer.close()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("way", ["bytes", "lines", "websocket"])
def test_a_call_through_a_door_survives_cuts_and_loses_no_byte(with_sandbox, way):
    async def test(sandbox, cloud):
        async with await asyncio.start_server(echo, sock=listener):
            url = f"http://127.0.0.1:{sandbox.spec.doors[0].port}/v1/chat/completions"
            caller = await sandbox.spawn(["python3", "-c", CALL, url])
            assert await caller.stdout.read() == b"ready\n"
            reading = asyncio.get_running_loop().create_task(caller.stdout.read())
            while not reading.done():
                await cloud.cut()
                assert (await sandbox.exec("true")).ok  # there is a new connection
            assert reading.result() == b"same\n", await caller.stderr.read()
            assert sandbox.connections > 3

    with socket.create_server(("127.0.0.1", 0)) as listener:
        door = Door(upstream=f"http://127.0.0.1:{listener.getsockname()[1]}")
        with_sandbox(test, SandboxSpec(network="model-only", doors=(door,)), way=way)
