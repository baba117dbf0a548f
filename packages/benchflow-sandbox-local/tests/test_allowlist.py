import asyncio

import pytest
from benchflow_contracts.errors import UsageError
from benchflow_contracts.sandbox import SandboxSpec

ASK = """
import socket, sys, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())
except OSError as error:
    print("refused:", error)
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[2])), timeout=2)
    print("a way around")
except OSError:
    print("no way around")
"""


def test_a_box_reaches_allowed_hosts_by_the_proxy_and_no_other_way(with_provider):
    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\noutside")
        await writer.drain()
        writer.close()

    async def check(provider):
        server = await asyncio.start_server(serve, "127.0.0.2", 0)
        port = server.sockets[0].getsockname()[1]
        spec = SandboxSpec(network="allowlist", allowed_hosts=("127.0.0.2",))
        async with server:
            box = await provider.create(spec)
            for host, answer in (
                ("127.0.0.2", "outside"),
                ("127.0.0.3", "refused: HTTP Error 403"),
            ):
                url = f"http://{host}:{port}/"
                result = await box.exec(["/usr/bin/python3", "-I", "-c", ASK, url, str(port)])
                assert result.stdout.startswith(answer), result
                assert result.stdout.endswith("no way around\n"), result
            image = await box.snapshot()
            await box.restore(image)
            child = await provider.create(spec, image=image)
            for each in (box, child):
                url = f"http://127.0.0.2:{port}/"
                result = await each.exec(["/usr/bin/python3", "-I", "-c", ASK, url, str(port)])
                assert result.stdout.startswith("outside"), result

    with_provider(check)


def test_hosts_without_their_network_are_refused(with_provider):
    async def check(provider):
        with pytest.raises(UsageError, match="does not use allowed hosts"):
            await provider.create(SandboxSpec(allowed_hosts=("example.org",)))

    with_provider(check)
