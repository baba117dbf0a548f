import asyncio
import re
import socket
from contextlib import asynccontextmanager

import pytest
from benchflow_contracts import Door, SandboxSpec
from benchflow_contracts.errors import UsageError
from benchflow_sandbox_core.proxy.allowlist import Allowlist
from benchflow_sandbox_core.proxy.server import Proxy, Target, proxy_environment, proxy_port
from benchflow_sandbox_core.relay.head import HeadError
from benchflow_sandbox_core.spec import check_spec
from hypothesis import given, settings
from hypothesis import strategies as st

LOOPBACK = "127.0.0.0/8"
POST = "POST http://127.0.0.1:{port}/ HTTP/1.1\r\n"
NO_HOSTS = [
    "",
    "*",
    "*.",
    "a b",
    "http://a",
    "a:80",
    "*.1",
    "127.1",
    "a..b",
    "-a",
    "é.org",
    "*.*.a",
]


@asynccontextmanager
async def outside():
    """A server of the outside world on the host's loopback: its port, and what reached it."""
    heads = []

    async def serve(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        heads.append(head.decode())
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        body = await reader.readexactly(int(length[1])) if length else b""
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], heads


@asynccontextmanager
async def proxy(*allowed):
    """A client of a proxy: sends bytes and returns all that comes back."""
    listener = socket.create_server(("127.0.0.1", 0))
    async with await Proxy.start(listener, Allowlist.parse(allowed)):

        async def ask(raw):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(raw)
            try:
                async with asyncio.timeout(20):
                    return await reader.read()
            finally:
                writer.close()
                await writer.wait_closed()

        yield ask


def run(test, *allowed):
    async def main():
        async with outside() as (port, heads), proxy(*allowed) as ask:
            await test(ask, port, heads)

    asyncio.run(main())


def test_a_listed_host_is_reached_plainly_and_through_a_tunnel():
    async def check(ask, port, heads):
        post = f"POST http://127.0.0.1:{port}/a?b HTTP/1.1\r\nHost: other\r\nContent-Length: 4\r\n"
        said = await ask(f"{post}Proxy-Authorization: secret\r\n\r\nbody".encode())
        assert said.startswith(b"HTTP/1.1 200 OK\r\n")
        assert said.endswith(b"\r\n\r\nbody")
        assert heads[0].startswith(f"POST /a?b HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n")
        assert "secret" not in heads[0]
        assert "other" not in heads[0]
        inner = "GET /in HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok"
        said = await ask(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n{inner}".encode())
        assert said.startswith(b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK\r\n")
        assert heads[1].startswith("GET /in HTTP/1.1\r\nHost: h\r\n")

    run(check, LOOPBACK)


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "[::127.0.0.1]", "127.1"),
        *("2130706433", "0x7f.0.0.1", "0177.0.0.1", "0", "0.0.0.0", "[::]", "LOCALHOST."),
        *("example.org.evil.test", "notexample.org", "169.254.169.254", "[fe80::1]"),
        *("[64:ff9b::7f00:1]", "[2002:7f00:1::]", "10.0.0.1", "192.168.1.1", "[fd00::1]"),
    ],
)
def test_what_is_not_listed_is_forbidden_however_it_is_spelled(host):
    async def check(ask, port, heads):
        for start in (f"GET http://{host}:{port}/", f"CONNECT {host}:{port}"):
            said = await ask(f"{start} HTTP/1.1\r\nHost: example.org\r\n\r\n".encode())
            assert said.startswith(b"HTTP/1.1 403 "), said
        assert heads == []

    run(check, "example.org", "*.example.org", "8.8.8.0/24")


@pytest.mark.parametrize(
    "raw",
    [
        "GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n",
        "GET https://127.0.0.1:{port}/ HTTP/1.1\r\n\r\n",
        "GET ftp://127.0.0.1:{port}/ HTTP/1.1\r\n\r\n",
        "GET http://user@127.0.0.1:{port}/ HTTP/1.1\r\n\r\n",
        "GET http://127.0.0.1:{port}@evil.test/ HTTP/1.1\r\n\r\n",
        "GET http://127.0.0.1:{port}\\@evil.test/ HTTP/1.1\r\n\r\n",
        "GET http://127.0.0.1%00:{port}/ HTTP/1.1\r\n\r\n",
        "GET http://[127.0.0.1/ HTTP/1.1\r\n\r\n",
        "GET http://[fe80::1%25eth0]:{port}/ HTTP/1.1\r\n\r\n",
        "GET http:///127.0.0.1:{port}/ HTTP/1.1\r\n\r\n",
        "GET http://127.0.0.1:0/ HTTP/1.1\r\n\r\n",
        "GET http://127.0.0.1:99999/ HTTP/1.1\r\n\r\n",
        "GET  http://127.0.0.1:{port}/ HTTP/1.1\r\n\r\n",
        "GET http://127.0.0.1:{port}/ HTTP/2.0\r\n\r\n",
        "GET http://127.0.0.1:{port}/ a HTTP/1.1\r\n\r\n",
        "CONNECT 127.0.0.1 HTTP/1.1\r\n\r\n",
        "CONNECT http://127.0.0.1:{port} HTTP/1.1\r\n\r\n",
        "CONNECT 127.0.0.1:{port}/ HTTP/1.1\r\n\r\n",
        "CONNECT 127.0.0.1:{port} HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
        "CONNECT 127.0.0.1:{port} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        f"{POST}Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        f"{POST}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        f"{POST}Transfer-Encoding: chunked, gzip\r\n\r\n",
        "GET http://127.0.0.1:{port}/ HTTP/1.1\r\nA: b\r\n folded\r\n\r\n",
        "GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost : x\r\n\r\n",
    ],
)
def test_what_others_could_read_differently_is_refused(raw):
    async def check(ask, port, heads):
        assert (await ask(raw.format(port=port).encode())).startswith(b"HTTP/1.1 400 ")
        assert heads == []

    run(check, LOOPBACK)


def test_a_second_request_on_a_connection_goes_nowhere():
    async def check(ask, port, heads):
        one = f"GET http://127.0.0.1:{port}/one HTTP/1.1\r\n\r\n"
        await ask(f"{one}{one.replace('one', 'two')}".encode())
        assert [head.split()[1] for head in heads] == ["/one"]
        assert heads[0].lower().count("connection: close") == 1

    run(check, LOOPBACK)


def answers(monkeypatch, *addresses):
    """Let names resolve to these, one answer after the other."""
    left = [each if isinstance(each, tuple) else (each,) for each in addresses]

    def resolve(host, port, *_, **__):
        if host[0].isdigit():
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]
        families = {True: socket.AF_INET6, False: socket.AF_INET}
        found = left.pop(0) if len(left) > 1 else left[0]
        return [(families[":" in each], socket.SOCK_STREAM, 6, "", (each, port)) for each in found]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "169.254.169.254", "0.0.0.0", "224.0.0.1", "100.64.0.1"),
        *("::1", "::ffff:127.0.0.1", "fe80::1%lo", "fd00::1", "64:ff9b::7f00:1", "ff02::1"),
        *("2002:7f00:1::", "2001:0:7f00:1::", "::127.0.0.1"),
    ],
)
def test_a_listed_name_leads_to_no_address_of_the_hosts_own_networks(monkeypatch, address):
    answers(monkeypatch, address)

    async def check(ask, port, heads):
        said = await ask(f"CONNECT sub.example.org:{port} HTTP/1.1\r\n\r\n".encode())
        assert said.startswith(b"HTTP/1.1 403 ")
        assert heads == []

    run(check, "*.example.org")


def test_the_address_that_was_checked_is_the_one_that_is_reached(monkeypatch):
    # The second answer would be the one of a rebinding server.
    answers(monkeypatch, ("10.0.0.1", "127.0.0.1"), "10.0.0.1")

    async def check(ask, port, heads):
        get = f"GET http://Example.ORG.:{port}/ HTTP/1.1\r\n\r\n".encode()
        assert (await ask(get)).startswith(b"HTTP/1.1 200 ")
        assert heads[0].startswith(f"GET / HTTP/1.1\r\nHost: Example.ORG.:{port}\r\n")
        assert (await ask(get)).startswith(b"HTTP/1.1 403 ")

    run(check, "example.org", "127.0.0.1")


def test_a_host_that_does_not_answer_is_a_bad_gateway():
    async def check(ask, port, heads):
        free = socket.create_server(("127.0.0.1", 0))
        nobody = free.getsockname()[1]
        free.close()
        said = await ask(f"CONNECT 127.0.0.1:{nobody} HTTP/1.1\r\n\r\n".encode())
        assert said.startswith(b"HTTP/1.1 502 ")

    run(check, LOOPBACK)


@settings(max_examples=300)
@given(st.text("GETCON http://[]:@%\\.?#abc0123456789/HTP1\t\u00e9", max_size=60))
def test_any_request_line_is_a_target_or_an_error(text):
    try:
        target = Target.of(text)
    except HeadError:
        return
    assert 0 < target.port < 65536
    assert not set(target.host) & set("/@\\ %#?")


@pytest.mark.parametrize("entry", NO_HOSTS)
def test_an_entry_that_is_no_host_is_refused(entry):
    with pytest.raises(UsageError, match="allowed host"):
        check_spec(SandboxSpec(network="allowlist", allowed_hosts=(entry,)))


def test_allowed_hosts_need_the_network_that_has_them():
    with pytest.raises(UsageError, match="'public' does not use allowed hosts"):
        check_spec(SandboxSpec(network="public", allowed_hosts=("example.org",)))
    assert proxy_environment(SandboxSpec()) == {}
    door = Door(upstream="http://127.0.0.1:1", port=8722)
    spec = SandboxSpec(network="allowlist", doors=(door,))
    assert proxy_environment(spec)["https_proxy"] == f"http://127.0.0.1:{proxy_port(spec)}"
    assert proxy_port(spec) != door.port
