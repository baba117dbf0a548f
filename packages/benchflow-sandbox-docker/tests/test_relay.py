import asyncio
from contextlib import asynccontextmanager

from benchflow_contracts.door import Door, Endpoint
from benchflow_contracts.sandbox import SandboxSpec

CLIENT = """
import http.client, os
c = http.client.HTTPConnection("127.0.0.1", 8721, timeout=20)
c.request("POST", "/chat/completions", body=b"x" * 300000, headers={"Authorization": "Bearer mine"})
r = c.getresponse()
print(r.status, len(r.read()))
"""


@asynccontextmanager
async def upstream():
    heads = []

    async def serve(reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        await reader.readexactly(300_000)
        heads.append(head)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 500000\r\n\r\n" + b"y" * 500_000)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        headers = {"Authorization": "Bearer secret"}
        yield heads, Endpoint(url=f"http://127.0.0.1:{port}/v1", headers=headers)


def test_the_model_is_the_only_address_and_its_key_stays_outside(with_provider):
    async def check(provider):
        async with upstream() as (heads, endpoint):
            spec = SandboxSpec(network="model-only", doors=(Door.to(endpoint),))
            box = await provider.create(spec)
            call = ["python3", "-I", "-c", CLIENT]
            assert (await box.exec(call)).stdout == "200 500000\n"
            assert heads[0].startswith("POST /v1/chat/completions HTTP/1.1\r\n")
            assert "Bearer secret" in heads[0]
            assert "mine" not in heads[0]
            found = await box.exec("cat /proc/*/environ; env; ls /sys/class/net", user="root")
            assert "secret" not in found.stdout
            assert found.stdout.endswith("\nlo\n")
            image = await box.snapshot()
            child = await provider.create(spec, image=image)
            await box.restore(image)
            for each in (child, box):
                assert (await each.exec(call)).stdout == "200 500000\n"

    with_provider(check)


FETCH = """
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())
except urllib.error.HTTPError as error:
    print(error.code)
"""


@asynccontextmanager
async def hello():
    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.2", 0) as server:
        yield server.sockets[0].getsockname()[1]


def test_allowed_hosts_are_reached_by_the_proxy_and_nothing_else_is(with_provider):
    async def check(provider):
        async with upstream() as (_, endpoint), hello() as port:
            spec = SandboxSpec(
                network="allowlist", allowed_hosts=("127.0.0.2",), doors=(Door.to(endpoint),)
            )
            box = await provider.create(spec)
            image = await box.snapshot()
            child = await provider.create(spec, image=image)
            await box.restore(image)
            for each in (child, box):
                fetch = ["python3", "-I", "-c", FETCH, f"http://127.0.0.2:{port}/"]
                assert (await each.exec(fetch)).stdout == "hello\n"
                other = endpoint.url.replace("127.0.0.1", "127.0.0.3")
                assert (await each.exec([*fetch[:-1], other])).stdout == "403\n"
                # Without the variables there is no way at all.
                direct = await each.exec(fetch, env={"http_proxy": "", "HTTP_PROXY": ""})
                assert "refused" in direct.stderr
                assert (await each.exec("ls /sys/class/net")).stdout == "lo\n"
                call = ["python3", "-I", "-c", CLIENT]
                assert (await each.exec(call)).stdout == "200 500000\n"

    with_provider(check)


def test_a_sandbox_in_the_public_network_reaches_its_model(with_provider):
    async def check(provider):
        async with upstream() as (heads, endpoint):
            box = await provider.create(SandboxSpec(network="public", doors=(Door.to(endpoint),)))
            assert (await box.exec(["python3", "-I", "-c", CLIENT])).stdout == "200 500000\n"
            assert "Bearer secret" in heads[0]
            assert (await box.exec("ls /sys/class/net")).stdout.split() == ["eth0", "lo"]

    with_provider(check)
