"""The agent's process and the ask tool's broker, as one process to the client."""

import asyncio
import json
import re

from benchflow_contracts import ByteReader, ByteWriter, Process, Sandbox, SandboxError

from benchflow_agent_acp.framing import as_object, parse_message, split_lines
from benchflow_agent_acp.in_sandbox.ask_tool.broker_protocol import LINE_BYTES

from .form import METHOD

KEY = "ask-mcp-"
"""Begins the id of every request that comes from the broker."""

_SEPARATOR = "+"
_DEPTH = 8
_REPLY = re.compile(rb'\{"jsonrpc":"2\.0","id":"ask-mcp-[0-9]{1,9}",')
_CALL = re.compile(rb'"toolCallId": ?("(?:[^"\\]|\\.){1,256}")')
_TAIL_BYTES = 256 * 1024


class JoinedReader:
    """What both say, as one stream of whole lines.

    A line of the broker comes between two lines of the agent, and after everything that
    the agent had written by then: the tool call that asks is known before its question.
    """

    def __init__(self, agent: ByteReader, broker: ByteReader, began: bytes) -> None:
        self._agent = agent
        self._broker: ByteReader | None = broker
        self._read: list[bytes] = []
        """Bytes of the agent, read already."""
        self._asked: list[bytes] = []
        """Bytes of the broker, read already."""
        self._buffer = bytearray()
        self._tail = bytearray(began)
        self._call: bytes | None = None

    def waiting(self) -> int:
        """Return the bytes that `read` would return without waiting."""
        count = sum(map(len, self._read)) + self._agent.waiting()
        if not self._tail and not count:
            count = sum(map(len, self._asked)) + (self._broker.waiting() if self._broker else 0)
        return count

    async def read(self, max_bytes: int = 65536) -> bytes:
        """Return bytes of the agent, or whole lines of the broker."""
        while True:
            if self._read:
                return self._of_agent(self._read.pop(0))
            if self._tail or self._agent.waiting():
                return self._of_agent(await self._agent.read(max_bytes))
            if self._asked and (requests := self._requests(self._asked.pop(0))):
                return requests
            if self._broker is None:
                return self._of_agent(await self._agent.read(max_bytes))
            await self._either(self._broker, max_bytes)

    async def _either(self, broker: ByteReader, max_bytes: int) -> None:
        """Read what comes first. What was read is kept, also when this is cancelled."""
        agent = asked = None
        try:
            async with asyncio.TaskGroup() as tasks:
                agent = tasks.create_task(self._agent.read(max_bytes))
                asked = tasks.create_task(broker.read())
                await asyncio.wait({agent, asked}, return_when=asyncio.FIRST_COMPLETED)
                agent.cancel()
                asked.cancel()
        finally:
            self._read += _result(agent)
            self._asked += _result(asked)

    def _of_agent(self, data: bytes) -> bytes:
        *lines, rest = (bytes(self._tail) + data).split(b"\n")
        for line in lines:
            if b"ask_user" in line and b"tool_call" in line:
                found = _CALL.search(line)
                self._call = found.group(1) if found else self._call
        # Longer lines are no tool call of ours; only their being open matters.
        self._tail[:] = rest[-_TAIL_BYTES:]
        return data

    def _requests(self, chunk: bytes) -> bytes:
        if not chunk:
            self._broker = None
        lines = split_lines(self._buffer, chunk, limit=LINE_BYTES) if chunk else []
        return b"".join(map(self._request, lines))

    def _request(self, line: bytes) -> bytes:
        message = parse_message(line, max_depth=_DEPTH)
        number, body = message.get("id"), as_object(message.get("params"))
        if type(number) is not int or not 0 < number < 10**9:
            return b""
        if self._call is not None:
            body["toolCallId"] = json.loads(self._call)
        request = {"jsonrpc": "2.0", "id": f"{KEY}{number}", "method": METHOD, "params": body}
        return json.dumps(request).encode() + b"\n"


def _result(task: asyncio.Task[bytes] | None) -> list[bytes]:
    if task is None or not task.done() or task.cancelled() or task.exception() is not None:
        return []
    return [task.result()]


class JoinedWriter:
    """Writes whole messages: replies to the broker's questions to it, the rest to the agent."""

    def __init__(self, agent: ByteWriter, broker: ByteWriter) -> None:
        self._agent = agent
        self._broker = broker

    async def write(self, data: bytes) -> None:
        """Write one message."""
        if not _REPLY.match(data):
            await self._agent.write(data)
            return
        try:
            await self._broker.write(data)
        except SandboxError:
            # A broker that was killed inside: the tool told the agent that nobody answers.
            return

    async def aclose(self) -> None:
        """Close both ends. Idempotent."""
        await self._agent.aclose()
        await self._broker.aclose()


class JoinedProcess:
    """Satisfies `Process`. Its end is the agent's; closing it ends both.

    `began` is what was read of the agent's open line before.
    """

    def __init__(self, agent: Process, broker: Process, *, began: bytes = b"") -> None:
        self._agent = agent
        self._broker = broker
        self.stdin = JoinedWriter(agent.stdin, broker.stdin)
        self.stdout = JoinedReader(agent.stdout, broker.stdout, began)

    @property
    def id(self) -> str:
        """Both ids, as `attach_joined` takes them."""
        return f"{self._agent.id}{_SEPARATOR}{self._broker.id}"

    @property
    def stderr(self) -> ByteReader:
        """The agent's; the broker's goes nowhere."""
        return self._agent.stderr

    async def wait(self) -> int:
        """Return the agent's exit code."""
        return await self._agent.wait()

    async def kill(self) -> None:
        """Kill both process groups."""
        await self._agent.kill()
        await self._broker.kill()

    async def aclose(self) -> None:
        """Kill both and release their pipes. Idempotent."""
        await self._agent.aclose()
        await self._broker.aclose()


async def attach_joined(sandbox: Sandbox, process_id: str, *, began: bytes) -> Process:
    """Take hold of a carried process, joined or alone, by the id that it had.

    `began` is the start of a line of the agent's that was read before the fork.

    Raises:
        SandboxError: There is none of this id.
    """
    agent, joined, broker = process_id.partition(_SEPARATOR)
    process = await sandbox.attach(agent)
    if not joined:
        return process
    return JoinedProcess(process, await sandbox.attach(broker), began=began)
