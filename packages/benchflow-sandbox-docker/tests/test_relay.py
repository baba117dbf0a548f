import asyncio
from contextlib import asynccontextmanager

from benchflow_contracts.sandbox import ModelEndpoint, SandboxSpec

CLIENT = """
import http.client, os
c = http.client.HTTPConnection("127.0.0.1", 8721, timeout=20)
c.request("POST", "/chat", body=b"x" * 300000, headers={"Authorization": "Bearer mine"})
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
        yield heads, ModelEndpoint(upstream=f"http://127.0.0.1:{port}/v1", headers=headers)


def test_the_model_is_the_only_address_and_its_key_stays_outside(with_provider):
    async def check(provider):
        async with upstream() as (heads, endpoint):
            spec = SandboxSpec(network="model-only", model=endpoint)
            box = await provider.create(spec)
            call = ["python3", "-I", "-c", CLIENT]
            assert (await box.exec(call)).stdout == "200 500000\n"
            assert heads[0].startswith("POST /v1/chat HTTP/1.1\r\n")
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
