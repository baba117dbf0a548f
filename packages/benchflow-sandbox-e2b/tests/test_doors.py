"""Calls through a door around a live fork, against our server. Nothing here runs on E2B."""

import asyncio
import socket
from collections import Counter

from benchflow_contracts.door import Door
from benchflow_contracts.sandbox import SandboxSpec

CALLS = """
import sys, urllib.request
print("ready", flush=True)
for line in sys.stdin:
    request = urllib.request.Request(sys.argv[1], line.strip().encode())
    with urllib.request.urlopen(request, timeout=100) as answer:
        print(answer.read().decode(), flush=True)
"""


async def said(process, line):
    await process.stdin.write(line)
    output = b""
    while not output.endswith(line):
        piece = await process.stdout.read()
        assert piece, "the process has ended"
        output += piece
    return output


def test_a_call_around_a_live_fork_reaches_the_gateway_whole_and_once(with_provider):
    async def test(provider, server):
        del server
        asked, may_answer, requests = asyncio.Event(), asyncio.Event(), Counter()

        async def serve(reader, writer):
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            body = await reader.readexactly(size)
            requests[body] += 1
            asked.set()
            await may_answer.wait()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + body)
            writer.close()

        async with await asyncio.start_server(serve, sock=listener):
            sandbox = await provider.create(spec)
            url = f"http://127.0.0.1:{spec.doors[0].port}/v1/chat/completions"
            process = await sandbox.spawn(["python3", "-c", CALLS, url])
            assert await process.stdout.read() == b"ready\n"
            await process.stdin.write(b"before\n")
            await asked.wait()
            # The snapshot waits for the call that is in flight.
            taking = asyncio.get_running_loop().create_task(sandbox.snapshot("live"))
            await asyncio.sleep(0)
            may_answer.set()
            image = await taking
            child = await provider.create(spec, image=image)
            copy = await child.attach(process.id)
            outputs = [await said(process, b"parent\n"), await said(copy, b"child\n")]
            # The answer is in the output of the parent, and of the child if nobody had read it.
            assert outputs[0] == b"before\nparent\n"
            assert outputs[1] in {b"before\nchild\n", b"child\n"}
            assert requests == {b"before": 1, b"parent": 1, b"child": 1}

    with socket.create_server(("127.0.0.1", 0)) as listener:
        door = Door(upstream=f"http://127.0.0.1:{listener.getsockname()[1]}")
        spec = SandboxSpec(network="model-only", doors=(door,))
        with_provider(test)
