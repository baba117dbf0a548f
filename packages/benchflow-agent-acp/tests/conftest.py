"""Processes and a sandbox for unit tests."""

import asyncio
import json
from functools import partial

import pytest
from host_sandbox import HostProcess, HostSandbox, run_in_sandbox


class MemoryPipe:
    def __init__(self):
        self._stream = asyncio.StreamReader(limit=1 << 30)

    async def read(self, max_bytes=65536):
        return await self._stream.read(max_bytes)

    def waiting(self):
        return len(self._stream._buffer)

    async def write(self, data):
        self._stream.feed_data(data)

    async def aclose(self):
        self._stream.feed_eof()


class MemoryProcess:
    """The client's end of an in-memory agent; the test plays the agent."""

    id = "p1"

    def __init__(self):
        self.stdin = MemoryPipe()
        self.stdout = MemoryPipe()
        self.stderr = MemoryPipe()
        self.killed = False

    async def say(self, **message):
        await self.raw(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def raw(self, data):
        await self.stdout.write(data)

    async def update(self, session_id="s", **update):
        await self.say(method="session/update", params={"sessionId": session_id, "update": update})

    async def hear(self):
        return json.loads(await self.stdin._stream.readline())

    async def wait(self):
        return 0

    async def kill(self):
        self.killed = True
        await self.stderr.aclose()

    async def aclose(self):
        await self.kill()


@pytest.fixture
def memory_process():
    return MemoryProcess


@pytest.fixture
def host_process():
    return HostProcess


@pytest.fixture
def host_sandbox():
    return HostSandbox


@pytest.fixture
def in_sandbox(tmp_path):
    """Run an async test body with a sandbox that is closed after it."""
    return partial(run_in_sandbox, tmp_path)
