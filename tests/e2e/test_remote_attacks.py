"""An agent inside the sandbox of each backend attacks what is outside of its own doors.

The SDKs of clouds run against our servers, so the networks are those of local sandboxes.
"""

import asyncio
import importlib
import pkgutil
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import remote_backends
from benchflow_contracts.door import Door
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_local import LocalProvider

BACKENDS = sorted(module.name for module in pkgutil.iter_modules(remote_backends.__path__))
DEFAULT_IMAGES = {
    "e2b": "base",
    "daytona": "default",
    "modal": "debian:bookworm-slim",
    "kubernetes": "debian:stable-slim",
    "remote": "",
}
SECRET, TEXT = "s3cr3t-0f-th3-runn3r", b"only for the runner"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
ATTACK = r"""
import os, socket, subprocess, sys

door, other, target = map(int, sys.argv[1:])
HOST, AUTHORITY = b"Host: 127.0.0.1:%d\r\n" % target, b"http://127.0.0.1:%d/" % target
found = {"bytes": b"", "reached": [], "answered": 0}

def ask(address, *data, family=socket.AF_INET):
    try:
        with socket.socket(family) as connection:
            connection.settimeout(3)
            connection.connect(address)
            found["reached"].append(address)
            for each in data:
                connection.sendall(each)
            while part := connection.recv(65536):
                found["bytes"] += part
    except OSError:
        pass

# Metadata addresses of clouds, the runner, and the door of another sandbox.
for address in ("169.254.169.254", "169.254.170.2", "100.100.100.200", "192.0.0.192", "10.0.0.1"):
    ask((address, 80), b"GET / HTTP/1.1\r\n\r\n")
ask(("fd00:ec2::254", 80, 0, 0), b"GET / HTTP/1.1\r\n\r\n", family=socket.AF_INET6)
for port in (target, other):
    ask(("127.0.0.1", port), b"GET / HTTP/1.1\r\n\r\n")
assert not found["reached"], found

# Its own door, with requests that could lead elsewhere.
BODY = b"Content-Length: 2\r\n\r\n{}"
for line in (
    b"GET " + AUTHORITY, b"POST " + AUTHORITY + b"v1/messages", b"CONNECT 127.0.0.1:%d" % target,
    b"POST //127.0.0.1:%d/v1/messages" % target, b"POST @127.0.0.1:%d/v1/messages" % target,
    b"POST /v1/../../../127.0.0.1:%d/v1/messages" % target, b"GET /v1/models?x=" + AUTHORITY,
):
    request = line + b" HTTP/1.1\r\n" + HOST + BODY
    ask(("127.0.0.1", door), request)
    ask(("127.0.0.1", door), b"POST /v1/messages HTTP/1.1\r\n" + HOST + BODY + request)
found["answered"] = found["bytes"].count(b"HTTP/1.1 200")

# The tunnel: each port and each socket that something in the sandbox listens at.
ports, names = set(), set()
for table in ("/proc/net/tcp", "/proc/net/tcp6"):
    for row in open(table).read().splitlines()[1:]:
        local, state = row.split()[1], row.split()[3]
        if state == "0A":
            ports.add(int(local.rpartition(":")[2], 16))
for row in open("/proc/net/unix").read().splitlines()[1:]:
    if len(row.split()) > 7:
        names.add(row.split()[7].replace("@", "\0", 1))
names.add("/.benchflow/socket")
GARBAGE = (bytes(64), b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n", os.urandom(4096))
for data in GARBAGE:
    for port in ports - {door}:
        ask(("127.0.0.1", port), data)
    for name in names:
        ask(name, data, family=socket.AF_UNIX)
for words in (["dial"], ["dial", "lines"], ["serve", "0"]):
    try:
        done = subprocess.run(
            ["/.benchflow/link", *words], input=bytes(4096), capture_output=True, timeout=5
        )
        found["bytes"] += done.stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        found["bytes"] += error.stdout or b"" if hasattr(error, "stdout") else b""
print("secret" if sys.stdin.read().encode() in found["bytes"] else "nothing", found["answered"])
"""


class Upstream:
    """A server of this machine. It notes the head of each request."""

    def __init__(self, text):
        self.text, self.heads, self.port = text, [], 0

    async def answer(self, reader, writer):
        self.heads.append(await reader.read(65536))
        writer.write(ANSWER % (len(self.text), self.text))
        writer.close()

    @asynccontextmanager
    async def serving(self):
        async with await asyncio.start_server(self.answer, "127.0.0.1") as server:
            self.port = server.sockets[0].getsockname()[1]
            yield self


async def attack(sandbox, others, target, user):
    """Run the attack; return what it printed."""
    words = ["python3", "-c", ATTACK, str(sandbox.spec.doors[0].port), str(others), str(target)]
    result = await sandbox.exec(words, user=user, stdin=TEXT, timeout=100)
    assert result.ok, result.stderr
    return result.stdout.split()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", BACKENDS)
def test_an_agent_reaches_its_own_doors_and_nothing_else(name):
    model, neighbour, runner = Upstream(b"own"), Upstream(b"another"), Upstream(TEXT)

    async def main():
        async with AsyncExitStack() as stack:
            for each in (model, neighbour, runner):
                await stack.enter_async_context(each.serving())
            local = await stack.enter_async_context(LocalProvider())
            backend = importlib.import_module(f"remote_backends.{name}")
            images = {DEFAULT_IMAGES[name]: SandboxSpec()}
            provider, _ = await stack.enter_async_context(backend.account(local, images))
            sandboxes = []
            for number, upstream in enumerate((model, neighbour)):
                headers = {"Authorization": f"Bearer {SECRET}"}
                url = f"http://127.0.0.1:{upstream.port}"
                door = Door(upstream=url, headers=headers, port=8721 + number)
                spec = SandboxSpec(network="model-only", doors=(door,))
                sandboxes.append(await provider.create(spec))
            sandbox, other = sandboxes
            for user in (None, "root"):
                said = await attack(sandbox, other.spec.doors[0].port, runner.port, user)
                assert said[0] == "nothing"
                # Some of its requests were calls of its own model.
                assert int(said[1]) == len(model.heads) > 0
                model.heads.clear()
                # The tunnel was not harmed.
                assert (await sandbox.exec("echo here")).stdout == "here\n"

    asyncio.run(main())
    assert (neighbour.heads, runner.heads) == ([], [])
