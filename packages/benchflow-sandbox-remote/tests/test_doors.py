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


ASK = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], b"question")
print("ready", flush=True)
with urllib.request.urlopen(request, timeout=100) as answer:
    print(answer.read().decode(), flush=True)
"""


def test_a_door_carries_bytes_in_a_freeze_and_the_process_gets_them_afterwards(with_sandbox):
    async def test(sandbox, cloud):
        del cloud
        asked, may_answer, answered = asyncio.Event(), asyncio.Event(), asyncio.Event()
        requests = []

        async def serve(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            requests.append(await reader.readexactly(8))
            asked.set()
            await may_answer.wait()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nanswer")
            writer.close()
            await writer.wait_closed()
            answered.set()

        async with await asyncio.start_server(serve, sock=listener):
            url = f"http://127.0.0.1:{sandbox.spec.doors[0].port}/v1/chat/completions"
            caller = await sandbox.spawn(["python3", "-c", ASK, url])
            assert await caller.stdout.read() == b"ready\n"
            await asked.wait()
            reading = asyncio.get_running_loop().create_task(caller.stdout.read())
            async with sandbox.freeze():
                may_answer.set()
                await answered.wait()  # by the gateway's side, in the freeze
                await sandbox._box.init.ping()  # the link has handled what came before
                assert not reading.done()
            assert await reading == b"answer\n", await caller.stderr.read()
            assert requests == [b"question"]

    with socket.create_server(("127.0.0.1", 0)) as listener:
        door = Door(upstream=f"http://127.0.0.1:{listener.getsockname()[1]}")
        with_sandbox(test, SandboxSpec(network="model-only", doors=(door,)))
