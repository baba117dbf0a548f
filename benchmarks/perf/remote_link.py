"""A sandbox behind a link, over a local sandbox: calls of a model, commands and streams.

The cloud of this benchmark is this machine: a local sandbox, of which only files, commands and one
stream are used: a process with bytes, with lines of base64, or a WebSocket to a port. So the
figures have no network. A local sandbox forwards its ports in this process, like a cloud's proxy.
A model call is a new connection inside, through the door, to a server of the host: 2 kB up and
200 bytes down, timed inside. The peer is the same call in the local sandbox itself.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchflow_contracts.door import Door
from benchflow_contracts.errors import SandboxError
from benchflow_contracts.sandbox import Sandbox, SandboxSpec
from benchflow_sandbox_local import LocalProvider
from benchflow_sandbox_local.sandbox import LocalSandbox
from benchflow_sandbox_remote import (
    PROGRAM,
    LineTransport,
    ProcessTransport,
    RemoteSandbox,
    Transport,
    WebSocketListener,
)
from report import emit

CALLS, COMMANDS, LARGE = 100, 60, 8 << 20
CALL_LIMIT, LARGE_LIMIT = 0.003, 0.150
BODY, ANSWER = b"x" * 2000, b"y" * 200
ASK = """
import json, sys, time, urllib.request
times = []
for _ in range(int(sys.argv[1])):
    started = time.perf_counter()
    request = urllib.request.Request("http://127.0.0.1:8721/v1/chat/completions", b"x" * 2000)
    with urllib.request.urlopen(request) as answer:
        size = len(answer.read())
    times.append(time.perf_counter() - started)
print(json.dumps([size, times]))
"""


class LocalCloudSandbox:
    """A local sandbox as a cloud would offer it."""

    def __init__(self, sandbox: LocalSandbox, way: str) -> None:
        self._sandbox = sandbox
        self._way = way
        self._listener: WebSocketListener | None = None
        self.id = sandbox.id

    async def put(self, path: str, content: bytes, mode: int) -> None:
        """Write a file inside."""
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            await self._sandbox.upload(Path(file.name), path)
        await self.run(["chmod", f"{mode:o}", path])

    async def run(self, argv: Sequence[str]) -> None:
        """Run a command as root."""
        result = await self._sandbox.exec(argv, user="root", cwd="/")
        if not result.ok:
            raise SandboxError(result.stderr)

    async def dial(self) -> Transport:
        """Connect to the link."""
        if self._way == "websocket":
            if self._listener is None:
                self._listener = await WebSocketListener.start(self)
            endpoint = await self._sandbox.expose_port(self._listener.port)
            return await self._listener.connect(endpoint.url)
        words = [PROGRAM, "dial", *(["lines"] if self._way == "lines" else [])]
        transport = ProcessTransport(await self._sandbox.spawn(words, user="root", cwd="/"))
        return LineTransport(transport) if self._way == "lines" else transport

    async def delete(self) -> None:
        """Delete the sandbox."""
        await self._sandbox.teardown()


async def serve(large: int) -> tuple[asyncio.Server, str]:
    """Start a model that answers 200 bytes, or `large` bytes to a GET."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = ANSWER if head.startswith(b"POST") else b"z" * large
        if head.startswith(b"POST"):
            await reader.readexactly(len(BODY))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def calls(sandbox: Sandbox) -> list[float]:
    """Return the seconds of each call, timed inside."""
    result = await sandbox.exec(["python3", "-c", ASK, str(CALLS)], timeout=120)
    assert result.ok, result.stderr
    size, times = json.loads(result.stdout)
    assert size == len(ANSWER)
    return [float(each) for each in times[5:]]


async def commands(sandbox: Sandbox) -> list[float]:
    """Return the seconds of each `true`."""
    times = list[float]()
    for _ in range(COMMANDS):
        started = time.perf_counter()
        await sandbox.exec(["true"])
        times.append(time.perf_counter() - started)
    return times


async def large(sandbox: Sandbox) -> list[float]:
    """Return the seconds of each answer of 8 MB, timed inside."""
    script = ASK.replace(', b"x" * 2000', "").replace("chat/completions", "models")
    result = await sandbox.exec(["python3", "-c", script, "7"], timeout=120)
    assert result.ok, result.stderr
    size, times = json.loads(result.stdout)
    assert size == LARGE
    return [float(each) for each in times]


async def main() -> int:
    """Print the lines; fail if a limit is missed."""
    server, upstream = await serve(LARGE)
    doors = SandboxSpec(network="model-only", doors=(Door(upstream=upstream),))
    missed = False
    async with server, LocalProvider() as provider:
        local = await provider.create(doors)
        direct = await calls(local)
        emit("remote_link.call.local", direct, unit="s")
        bare = emit("remote_link.exec.local", await commands(local), unit="s")
        for name in ("bytes", "lines", "websocket"):
            inner = await provider.create(SandboxSpec(user="root", workdir="/"))
            cloud = LocalCloudSandbox(inner, name)
            sandbox = await RemoteSandbox.start(cloud, doors)
            short, long = await calls(sandbox), await large(sandbox)
            took = emit(f"remote_link.call.{name}", short, unit="s", limit=CALL_LIMIT)
            whole = emit(f"remote_link.8MB.{name}", long, unit="s", limit=LARGE_LIMIT)
            mine = emit(f"remote_link.exec.{name}", await commands(sandbox), unit="s")
            emit(f"remote_link.exec.{name}.ratio", [mine / bare], unit="x")
            missed = missed or took > CALL_LIMIT or whole > LARGE_LIMIT
            await sandbox.teardown()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
