# The scripted upstream has no event to wait for; the client program holds braces.
# ruff: noqa: ASYNC110, UP031

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from benchflow_contracts.door import Door, Endpoint
from benchflow_contracts.errors import SandboxUnsupportedError, UsageError
from benchflow_contracts.sandbox import SandboxSpec

CLIENT = """
import json, sys, http.client
c = http.client.HTTPConnection("127.0.0.1", 8721, timeout=20)
body = b"x" * int(sys.argv[2])
c.request(sys.argv[1], sys.argv[3], body=body or None, headers={"Authorization": "Bearer mine"})
r = c.getresponse()
print(r.status, r.getheader("Connection"), r.read().decode())
"""


class Upstream:
    """A scripted model endpoint that reports what reached it."""

    def __init__(self):
        self.heads = []
        self.bodies = []
        self.reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
        self.gate = asyncio.Event()
        self.gate.set()

    async def serve(self, reader, writer):
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            self.bodies.append(b"")
            at = len(self.bodies) - 1
            for line in head.lower().splitlines():
                if line.startswith("content-length:"):
                    self.bodies[at] = await reader.readexactly(int(line.split(":")[1]))
            await self.gate.wait()
            self.writer = writer
            writer.write(self.reply)
            await writer.drain()
            self.bodies[at] += await reader.read(1000) if self.reply.endswith(b"wait") else b""
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def upstream(prefix="", headers=None):
    scripted = Upstream()
    server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}{prefix}"
        yield scripted, Endpoint(url=url, headers=headers or {}), port


async def stuck(writer):
    """Return once nothing more of what was written moves on."""
    size, same = -1, 0
    while same < 50:
        now = writer.transport.get_write_buffer_size()
        size, same = now, same + 1 if now == size and now else 0
        await asyncio.sleep(0.01)


def spec(endpoint):
    return SandboxSpec(network="model-only", doors=(Door.to(endpoint),))


async def raw(sandbox, data, port=8721):
    code = (
        "import socket,sys\ns=socket.create_connection(('127.0.0.1',%d),timeout=20)\n"
        "s.sendall(sys.stdin.buffer.read())\nd=b''\n"
        "while True:\n b=s.recv(65536)\n if not b: break\n d+=b\nprint(d.decode('latin-1'))" % port
    )
    return (await sandbox.exec(["python3", "-I", "-c", code], stdin=data, timeout=30)).stdout


def test_a_call_gets_host_prefix_and_credential_on_the_outside(with_provider):
    async def check(provider):
        async with upstream("/v1/base", {"Authorization": "Bearer secret"}) as (up, endpoint, port):
            sandbox = await provider.create(spec(endpoint))
            result = await sandbox.exec(
                ["python3", "-I", "-c", CLIENT, "POST", "9000", "/chat/completions?a=b"]
            )
            assert result.stdout == "200 close ok\n", result
            head = up.heads[0]
            assert head.startswith("POST /v1/base/chat/completions?a=b HTTP/1.1\r\n")
            assert f"\r\nHost: 127.0.0.1:{port}\r\n" in head
            assert "Bearer secret" in head
            assert "mine" not in head
            assert "\r\nConnection: close\r\n" in head
            assert up.bodies[0] == b"x" * 9000
            leaked = await sandbox.exec("cat /proc/*/environ; env", user="root")
            assert "secret" not in leaked.stdout

    with_provider(check)


def test_it_is_the_only_address_and_the_host_cannot_be_named(with_provider):
    async def check(provider):
        async with upstream() as (up, endpoint, port):
            sandbox = await provider.create(spec(endpoint))
            code = f"import socket; socket.create_connection(('127.0.0.1', {port}), timeout=5)"
            assert not (await sandbox.exec(["python3", "-I", "-c", code])).ok
            for line in (
                b"GET http://192.0.2.1/x HTTP/1.1",
                b"CONNECT 192.0.2.1:443 HTTP/1.1",
                b"GET /../admin HTTP/1.1",
                b"GET /a/%2e%2E/admin HTTP/1.1",
                b"GET /x HTTP/2.0",
                b"nonsense",
            ):
                assert "400 Bad Request" in await raw(
                    sandbox, line + b"\r\nHost: 192.0.2.1\r\n\r\n"
                )
            assert up.heads == []

    with_provider(check)


def test_a_second_request_on_the_connection_goes_nowhere(with_provider):
    async def check(provider):
        async with upstream(headers={"X-Key": "k"}) as (up, endpoint, _):
            up.reply = b"HTTP/1.1 200 OK\r\n\r\nwait"
            sandbox = await provider.create(spec(endpoint))
            one = b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
            two = b"GET /models HTTP/1.1\r\nHost: x\r\n\r\n"
            up.gate.clear()
            async with asyncio.TaskGroup() as group:
                reply = group.create_task(raw(sandbox, one + two))
                while not up.heads:
                    await asyncio.sleep(0.01)
                up.gate.set()
                while b"abc" not in up.bodies:
                    await asyncio.sleep(0.01)
                # The upstream still reads: whatever was smuggled would arrive here.
                await asyncio.sleep(0.2)
                assert up.bodies == [b"abc"]
                await sandbox.exec("pkill python3")
                reply.cancel()
            assert len(up.heads) == 1

    with_provider(check)


@pytest.mark.parametrize(
    "fields",
    [
        b"Content-Length: 3\r\nContent-Length: 4",
        b"Content-Length: 3\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: gzip, chunked",
        b"Content-Length: +3",
        b"Content-Length : 3",
        b"A: b\r\n c",
        b"\x00: x",
    ],
)
def test_a_request_that_two_readers_could_see_differently_is_refused(with_provider, fields):
    async def check(provider):
        async with upstream() as (up, endpoint, _):
            sandbox = await provider.create(spec(endpoint))
            data = b"POST /responses HTTP/1.1\r\nHost: x\r\n" + fields + b"\r\n\r\nabc"
            assert "400 Bad Request" in await raw(sandbox, data)
            assert up.heads == []

    with_provider(check)


def test_a_head_that_is_too_big_is_refused(with_provider):
    async def check(provider):
        async with upstream() as (up, endpoint, _):
            sandbox = await provider.create(spec(endpoint))
            data = b"GET / HTTP/1.1\r\nA: " + b"x" * 70_000 + b"\r\n\r\n"
            code = (
                "import socket,sys\ns=socket.create_connection(('127.0.0.1',8721))\n"
                "try: s.sendall(sys.stdin.buffer.read()); print(s.recv(99))\n"
                "except OSError: print('431 reset')"
            )
            result = await sandbox.exec(["python3", "-I", "-c", code], stdin=data)
            assert "431" in result.stdout
            assert up.heads == []

    with_provider(check)


def test_a_stream_of_chunks_comes_through_as_it_is(with_provider):
    async def check(provider):
        async with upstream() as (up, endpoint, _):
            chunks = b"".join(b"5;x=y\r\nhello\r\n" for _ in range(1000))
            up.reply = (
                b"HTTP/1.1 100 Continue\r\n\r\n"
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                + chunks
                + b"0\r\nT: r\r\n\r\n"
            )
            sandbox = await provider.create(spec(endpoint))
            result = await sandbox.exec(["python3", "-I", "-c", CLIENT, "POST", "5", "/responses"])
            assert result.stdout == "200 close " + "hello" * 1000 + "\n"

    with_provider(check)


def test_an_upstream_that_is_down_or_talks_nonsense_is_a_bad_gateway(with_provider):
    async def check(provider):
        async with upstream() as (up, endpoint, _):
            up.reply = b"\x00\x01nonsense\r\n\r\n"
            sandbox = await provider.create(spec(endpoint))
            result = await sandbox.exec(["python3", "-I", "-c", CLIENT, "GET", "0", "/models"])
            assert result.stdout.startswith("502 close")
        result = await sandbox.exec(["python3", "-I", "-c", CLIENT, "GET", "0", "/models"])
        assert result.stdout.startswith("502 close")

    with_provider(check)


def test_drain_waits_for_the_call_in_flight(with_provider):
    async def check(provider):
        async with upstream() as (up, endpoint, _):
            sandbox = await provider.create(spec(endpoint))
            assert sandbox.relays[8721].in_flight == 0
            up.gate.clear()
            async with asyncio.TaskGroup() as group:
                call = group.create_task(
                    sandbox.exec(["python3", "-I", "-c", CLIENT, "GET", "0", "/models"])
                )
                while not up.heads:
                    await asyncio.sleep(0.01)
                assert sandbox.relays[8721].in_flight == 1
                draining = group.create_task(sandbox.relays[8721].drain())
                await asyncio.sleep(0.05)
                assert not draining.done()
                up.gate.set()
                await draining
            assert call.result().stdout == "200 close ok\n"
            assert sandbox.relays[8721].in_flight == 0

    with_provider(check)


def test_a_client_that_goes_away_ends_its_call(with_provider):
    async def check(provider):
        async with upstream() as (up, endpoint, _):
            sandbox = await provider.create(spec(endpoint))
            up.gate.clear()
            process = await sandbox.spawn(
                ["python3", "-I", "-c", CLIENT, "POST", "9", "/responses"]
            )
            while not up.heads:
                await asyncio.sleep(0.01)
            assert sandbox.relays[8721].in_flight == 1
            await process.aclose()
            async with asyncio.timeout(10):
                await sandbox.relays[8721].drain()
            up.gate.set()

    with_provider(check)


def test_the_relay_goes_on_after_a_restore_and_in_a_fork(with_provider):
    async def check(provider):
        async with upstream(headers={"X-Key": "k"}) as (up, endpoint, _):
            sandbox = await provider.create(spec(endpoint))
            image = await sandbox.snapshot()
            await sandbox.restore(image)
            child = await provider.create(spec(endpoint), image=image)
            for box in (sandbox, child):
                result = await box.exec(["python3", "-I", "-c", CLIENT, "GET", "0", "/models"])
                assert result.stdout == "200 close ok\n"
            assert all("X-Key: k" in head for head in up.heads)

    with_provider(check)


def test_a_relay_needs_a_plain_upstream_and_the_right_network(with_provider):
    async def check(provider):
        for url in ("ftp://x/", "http://user:key@x/", "http://x/?q", "nonsense", "http://x:99999/"):
            with pytest.raises(UsageError):
                await provider.create(spec(Endpoint(url=url)))
        with pytest.raises(SandboxUnsupportedError):
            await provider.create(SandboxSpec(doors=(Door.to(Endpoint(url="http://x/")),)))
        with pytest.raises(SandboxUnsupportedError, match="public"):
            await provider.create(SandboxSpec(network="public"))
        assert [record async for record in provider.sandboxes()] == []

    with_provider(check)


def test_a_port_inside_can_be_reached_from_the_host(with_provider):
    server = (
        "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8080, bind='127.0.0.1')"
    )

    async def get(endpoint):
        while True:
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
            try:
                writer.write(b"GET /file HTTP/1.0\r\n\r\n")
                answer = await reader.read()
            except ConnectionResetError:
                answer = b""
            finally:
                writer.close()
            if answer:
                return answer
            await asyncio.sleep(0.05)

    async def check(provider):
        sandbox = await provider.create(SandboxSpec())
        await sandbox.exec("echo served > file")
        endpoint = await sandbox.expose_port(8080)
        assert await sandbox.expose_port(8080) == endpoint
        assert endpoint.url.startswith("http://127.0.0.1:")
        image = await sandbox.snapshot()
        for _ in range(2):
            process = await sandbox.spawn(["python3", "-I", "-c", server])
            async with asyncio.timeout(20):
                assert (await get(endpoint)).endswith(b"served\n")
                with await sandbox.connect_tcp(8080) as direct:
                    assert direct.getpeername() == ("127.0.0.1", 8080)
                with pytest.raises(ConnectionRefusedError):
                    await sandbox.connect_tcp(8081)
            await sandbox.restore(image)
            await process.aclose()
        await sandbox.teardown()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(endpoint.host, endpoint.port)

    with_provider(check)


def test_json_is_untouched(with_provider):
    async def check(provider):
        async with upstream() as (up, endpoint, _):
            text = json.dumps({"a": "ü\n", "b": [1, 2]}).encode()
            up.reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text)
            sandbox = await provider.create(spec(endpoint))
            result = await sandbox.exec(["python3", "-I", "-c", CLIENT, "GET", "0", "/models"])
            assert json.loads(result.stdout.removeprefix("200 close ")) == {"a": "ü\n", "b": [1, 2]}

    with_provider(check)


GET = """
import sys, urllib.request
for port in sys.argv[1:]:
    print(urllib.request.urlopen(f"http://127.0.0.1:{port}/models", timeout=20).read().decode())
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", ["criu", pytest.param("runsc", marks=pytest.mark.slow)])
def test_each_door_of_a_live_child_leads_to_its_own_upstream(with_provider, request, engine):
    request.getfixturevalue(engine)

    async def check(provider):
        async with AsyncExitStack() as stack:
            doors = []
            for number in range(4):
                up, endpoint, _ = await stack.enter_async_context(upstream())
                up.reply = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d" % number
                port = 8721 + number % 2
                doors.append(Door.to(endpoint, name=f"door-{port}", port=port))
            before, after = tuple(doors[:2]), tuple(doors[2:])
            parent = await provider.create(SandboxSpec(network="model-only", doors=before))
            image = await parent.snapshot("live")
            # The order of the doors does not say which port leads where.
            spec = SandboxSpec(network="model-only", doors=after[::-1])
            child = await provider.create(spec, image=image)
            get = ["python3", "-I", "-c", GET, "8721", "8722"]
            assert (await child.exec(get)).stdout.split() == ["2", "3"]
            assert (await parent.exec(get)).stdout.split() == ["0", "1"]
            assert set(child.door_paths) == {"door-8721", "door-8722"}

    with_provider(check, engine=engine)


UNREAD = """
import socket, time
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
s.connect(("127.0.0.1", 8721))
s.sendall(b"GET /models HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n")
print(s.recv(1), flush=True)
time.sleep(600)
"""


def test_an_inside_that_does_not_read_cannot_hold_up_the_end(with_provider):
    async def check(provider):
        async with upstream() as (up, endpoint, _):
            up.reply = b"HTTP/1.1 200 OK\r\nContent-Length: 64000000\r\n\r\n" + b"x" * 64_000_000
            sandbox = await provider.create(spec(endpoint))
            process = await sandbox.spawn(["python3", "-I", "-c", UNREAD])
            assert await process.stdout.read()
            await stuck(up.writer)
            assert sandbox.relays[8721].in_flight == 1
            async with asyncio.timeout(20):
                await sandbox.relays[8721].aclose()
            await sandbox.teardown()

    with_provider(check)


def test_a_service_that_does_not_read_cannot_hold_up_the_end(with_provider):
    server = (
        "import socket,time\ns=socket.create_server(('127.0.0.1',8080))\n"
        "print('up',flush=True)\nc=s.accept()\nprint('in',flush=True)\ntime.sleep(600)"
    )

    async def check(provider):
        sandbox = await provider.create(SandboxSpec())
        process = await sandbox.spawn(["python3", "-I", "-c", server])
        assert await process.stdout.read()
        endpoint = await sandbox.expose_port(8080)
        _, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        writer.write(b"x" * 64_000_000)
        assert await process.stdout.read()
        await stuck(writer)
        async with asyncio.timeout(20):
            await sandbox.box.services.forwards.aclose()
        writer.transport.abort()
        await sandbox.teardown()

    with_provider(check)


MANY = """
import socket, sys
held = []
for _ in range(int(sys.argv[1])):
    s = socket.create_connection(("127.0.0.1", 8721), timeout=20)
    s.sendall(b"GET /models HTTP/1.1\\r\\nHost: a\\r\\n")
    held.append(s)
held[-1].settimeout(20)
print(held[-1].recv(100).split(b"\\r\\n")[0].decode())
"""


def test_a_flood_of_connections_takes_few_descriptors_of_the_runner(with_provider):
    async def check(provider):
        async with upstream() as (_, endpoint, _):
            sandbox = await provider.create(spec(endpoint))
            result = await sandbox.exec(["python3", "-I", "-c", MANY, "65"], timeout=30)
            assert result.stdout == "HTTP/1.1 503 Service Unavailable\n"

    with_provider(check)
