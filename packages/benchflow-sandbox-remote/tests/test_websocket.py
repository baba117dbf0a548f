"""The link over a WebSocket: cuts in frames, strangers, impostors, and frames not allowed."""

import asyncio
import base64
import hashlib
import hmac
import random
import secrets
from contextlib import suppress

import pytest
from benchflow_contracts.errors import HostError, SandboxError
from benchflow_sandbox_remote import WebSocketDialer, WebSocketListener
from benchflow_sandbox_remote.records import Record, RecordKind
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Response

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
NONCE = "0123456789abcdef0123456789abcdef"
REFUSED = b"HTTP/1.1 404 Not Found\r\n"


def test_the_link_continues_wherever_tcp_is_cut(with_sandbox):
    seed = secrets.randbits(32)
    chance = random.Random(seed)

    async def test(sandbox, cloud):
        process = await sandbox.spawn("cat")
        cut = 0
        for number in range(25):
            before = sandbox.connections
            # A handshake has 300 bytes up and 150 down, and a call some hundred more.
            cloud.proxy.limits.append((chance.randrange(1200), chance.randrange(1200)))
            cloud.proxy.cut()
            line = b"%d\n" % number
            await process.stdin.write(line)
            result = await sandbox.exec(f"echo {number}; exit 3")
            assert (result.stdout, result.exit_code) == (line.decode(), 3), seed
            assert await process.stdout.read() == line, seed
            cut += sandbox.connections - before > 1
        await process.stdin.aclose()
        assert await process.wait() == 0
        assert cut > 3, seed

    with_sandbox(test, way="websocket")


def test_a_large_stream_that_is_cut_again_and_again_loses_no_byte(with_sandbox):
    size = 1_500_000
    data = random.Random(1).randbytes(size)

    async def test(sandbox, cloud):
        process = await sandbox.spawn("cat")

        async def write():
            for at in range(0, size, 100_000):
                await process.stdin.write(data[at : at + 100_000])
            await process.stdin.aclose()

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            got = hashlib.sha256()
            count, cuts = 0, 0
            while piece := await process.stdout.read(65536):
                got.update(piece)
                count += len(piece)
                if count > cuts * 150_000:
                    cuts += 1
                    cloud.proxy.cut()
        assert (count, got.digest()) == (size, hashlib.sha256(data).digest())
        assert await process.wait() == 0
        assert sandbox.connections > 5

    with_sandbox(test, way="websocket")


def proof(token, role="host", nonce=NONCE):
    return hmac.digest(token, f"{role}{nonce}".encode(), "sha1").hex()


def request(**changed):
    """Return a request for a WebSocket; `None` leaves a header out, a list repeats it."""
    headers = {
        "Host": "sandbox",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": KEY,
        "X-Benchflow-Nonce": NONCE,
    } | {name.replace("_", "-"): value for name, value in changed.items()}
    lines = [
        f"{name}: {each}"
        for name, value in headers.items()
        for each in (value if isinstance(value, list) else [value])
        if each is not None
    ]
    return "\r\n".join(["GET / HTTP/1.1", *lines, "", ""]).encode()


async def ask(cloud, data, *, more=None):
    """Send bytes to the port; return all that it sends until it ends."""
    reader, writer = await asyncio.open_connection(*cloud.proxy.to)
    try:
        writer.write(data)
        if more is not None:
            answer = await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(22)
            writer.write(more)
            return answer, await reader.read()
        return await reader.read()
    finally:
        writer.close()


def test_a_stranger_gets_nothing_and_does_not_disturb_the_host(with_sandbox):
    async def test(sandbox, cloud):
        token = cloud.listener._token
        right = proof(token)
        for stranger in (
            request(),
            request(X_Benchflow_Proof=proof(bytes(32))),
            request(X_Benchflow_Proof=proof(token, role="link")),
            request(X_Benchflow_Proof=proof(token, nonce="f" * 32)),
            request(X_Benchflow_Proof=right[:-1]),
            request(X_Benchflow_Proof=[right, right]),
            request(X_Benchflow_Proof=right, X_Benchflow_Nonce=None),
            request(X_Benchflow_Proof=right, X_Benchflow_Nonce=NONCE[1:]),
            request(X_Benchflow_Proof=right, Upgrade="h2c"),
            request(X_Benchflow_Proof=right, Sec_WebSocket_Version="8"),
            request(X_Benchflow_Proof=right, Sec_WebSocket_Key="short"),
            request(X_Benchflow_Proof=right).replace(b"GET", b"PUT"),
            request(X_Benchflow_Proof=right) + b"early",
            request(X_Benchflow_Proof=right, Host="a\0b"),
            request(X_Benchflow_Proof=right, Cookie="x" * 20_000),
            b"\r\n\r\n",
            b"\0" * 100 + b"\r\n\r\n",
        ):
            assert (await ask(cloud, stranger)).startswith(REFUSED), stranger[:300]
        answer, _ = await ask(cloud, request(X_Benchflow_Proof=right), more=b"\x88\x80" + bytes(4))
        digest = hashlib.sha1((KEY + GUID).encode()).digest()
        assert answer.startswith(b"HTTP/1.1 101 ")
        assert b"Sec-WebSocket-Accept: " + base64.b64encode(digest) in answer
        assert answer[-20:].hex() == proof(token, role="link")
        assert (await sandbox.exec("echo here")).stdout == "here\n"

    with_sandbox(test, way="websocket")


def frame(opcode, payload=b"", *, first=0x80, masked=True, length=None):
    """Return one frame. `length` is what its header says."""
    size = len(payload) if length is None else length
    bit = 0x80 if masked else 0
    head = bytes([first | opcode])
    if size < 126:
        head += bytes([bit | size])
    elif size < 1 << 16:
        head += bytes([bit | 126]) + size.to_bytes(2)
    else:
        head += bytes([bit | 127]) + size.to_bytes(8)
    mask = b"\1\2\3\4" if masked else b""
    return (
        head + mask + (bytes(b ^ mask[i % 4] for i, b in enumerate(payload)) if mask else payload)
    )


def greeting(token):
    return Record(RecordKind.HELLO, 0, token).encode()


FRAMES = {
    "a session without its token": (frame(2, greeting(bytes(32))), b""),
    "unmasked": (frame(2, b"x", masked=False) + bytes(4), b""),
    "reserved bit": (frame(2, b"x", first=0xC0), b""),
    "too large": (frame(2, length=(1 << 20) + 1), b""),
    "endless": (frame(2, length=(1 << 64) - 1), b""),
    "text": (frame(1, b"text"), b""),
    "no message to continue": (frame(0, b"x"), b""),
    "message in a message": (frame(2, b"x", first=0) + frame(2, b"y"), b""),
    "unknown": (frame(3), b""),
    "unknown control": (frame(11), b""),
    "part of a ping": (frame(9, b"x", first=0), b""),
    "large ping": (frame(9, b"x" * 126), b""),
    "ping and close": (
        frame(9, b"a" * 125) + frame(8, b"\x03\xe8bye"),
        b"\x8a\x7d" + b"a" * 125 + b"\x88\x02\x03\xe8",
    ),
    "ping in a message": (
        frame(2, b"", first=0) + frame(9) + frame(0, b"") + frame(8),
        b"\x8a\0\x88\0",
    ),
}


def test_a_connection_with_the_token_of_the_port_takes_over_no_session(with_sandbox):
    async def test(sandbox, cloud):
        process = await sandbox.spawn("cat")
        right = request(X_Benchflow_Proof=proof(cloud.listener._token))
        for name, (data, expected) in FRAMES.items():
            _, rest = await ask(cloud, right, more=data)
            assert rest == expected, name
            await process.stdin.write(name.encode())
            assert await process.stdout.read() == name.encode()

    with_sandbox(test, way="websocket")


def test_silent_strangers_do_not_keep_the_host_out(with_sandbox):
    async def test(sandbox, cloud):
        strangers = [await asyncio.open_connection(*cloud.proxy.to) for _ in range(60)]
        for _ in range(3):
            cloud.proxy.cut()
            assert (await sandbox.exec("echo here")).stdout == "here\n"
        for _, writer in strangers:
            writer.close()

    with_sandbox(test, way="websocket")


TAKE = """
import socket
for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    try:
        taker = socket.socket(family)
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taker.bind((host, %d))
        taker.listen()
        print("taken", host)
    except OSError:
        pass
"""


def test_a_process_inside_cannot_take_the_port(with_sandbox):
    async def test(sandbox, cloud):
        result = await sandbox.exec(["python3", "-c", TAKE % cloud.listener.port])
        assert (result.stdout, result.exit_code) == ("", 0), result.stderr
        with pytest.raises(SandboxError, match="in use"):
            await WebSocketListener.start(cloud, port=cloud.listener.port)
        assert (await sandbox.exec("echo here")).stdout == "here\n"

    with_sandbox(test, way="websocket")


def test_the_token_of_the_port_is_never_sent(with_sandbox):
    async def test(sandbox, cloud):
        for _ in range(3):
            cloud.proxy.cut()
            assert (await sandbox.exec("true")).ok
        token = cloud.listener._token
        for form in (token, token.hex().encode(), base64.b64encode(token)):
            assert form not in cloud.proxy.carried
        assert b"X-Benchflow-Proof" in cloud.proxy.carried

    with_sandbox(test, way="websocket")


def connected(*, answer=b"x" * 20, process_request=None):
    """Connect a listener to a server that is not its link; return the error and the requests."""

    async def main():
        seen, token = [], secrets.token_bytes(32)

        async def handle(connection):
            seen.append(str(connection.request.headers))
            await connection.send(answer)
            with suppress(ConnectionClosed):
                seen.append(await connection.recv())

        async with serve(handle, "127.0.0.1", 0, process_request=process_request) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(OSError, match="link") as caught:
                await WebSocketListener(port, token).connect(f"http://127.0.0.1:{port}/")
        return str(caught.value), seen, token

    return asyncio.run(main())


@pytest.mark.parametrize("answer", [b"x" * 20, b"", "text", b"x" * 200_000])
def test_a_server_that_is_not_the_link_gets_no_byte_of_a_session(answer):
    error, seen, token = connected(answer=answer)
    assert "did not prove" in error
    assert len(seen) == 1
    assert token.hex() not in seen[0]


def test_a_redirect_is_not_followed_so_no_other_server_gets_the_headers():
    asked = []

    def redirect(connection, request):
        asked.append(request.path)
        headers = connection.protocol.reject(302, "").headers
        headers["Location"] = "/elsewhere"
        return Response(302, "Found", headers)

    error, _, _ = connected(process_request=redirect)
    assert "302" in error
    assert asked == ["/"]


class Account:
    """A sandbox whose port can be closed."""

    def __init__(self, cloud):
        self.cloud = cloud
        self.is_closed = False
        self.texts = 0

    async def locate(self, port):
        if self.is_closed:
            raise HostError("no such port")
        return (await self.cloud.box.expose_port(port)).url, {"x-cloud": "token"}

    async def text(self):
        self.texts += 1
        return await self.cloud.dial()


@pytest.mark.parametrize("is_closed", [False, True])
def test_the_link_uses_text_only_if_its_port_never_worked(with_sandbox, is_closed):
    async def test(sandbox, cloud):
        assert (await sandbox.exec("true")).ok  # the program is inside
        account = Account(cloud)
        account.is_closed = is_closed
        dialer = WebSocketDialer(cloud, account.locate, account.text)
        for _ in range(2):
            await (await dialer.dial()).aclose()
        assert account.texts == (2 if is_closed else 0)
        account.is_closed = not is_closed
        if is_closed:
            await (await dialer.dial()).aclose()
            assert account.texts == 3
        else:
            with pytest.raises(HostError, match="no such port"):
                await dialer.dial()

    with_sandbox(test)
