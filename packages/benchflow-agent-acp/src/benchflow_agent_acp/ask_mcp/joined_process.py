"""The agent's process and the ask tool's broker, joined into one process for the client."""

import asyncio
import json
import re

from benchflow_contracts import ByteReader, ByteWriter, Process, Sandbox, SandboxError

from benchflow_agent_acp.framing import as_object, parse_message, split_lines
from benchflow_agent_acp.in_sandbox.ask_tool.broker_protocol import LINE_BYTES

from .messages import METHOD

REQUEST_PREFIX = "ask-mcp-"
"""The start of the id of every request from the broker."""

_SEPARATOR = "+"
_DEPTH = 8
_REPLY = re.compile(rb'\{"jsonrpc":"2\.0","id":"ask-mcp-[0-9]{1,9}",')
_CALL = re.compile(rb'"toolCallId": ?("(?:[^"\\]|\\.){1,256}")')
_TAIL_BYTES = 256 * 1024


class JoinedReader:
    """Joins two outputs into one stream of whole lines.

    A line of the broker comes between two lines of the agent, after all bytes that the agent
    wrote before. So the client knows the tool call before its question arrives.
    """

    def __init__(self, agent: ByteReader, broker: ByteReader, partial_line: bytes) -> None:
        self._agent = agent
        self._broker: ByteReader | None = broker
        self._agent_chunks: list[bytes] = []
        """Bytes that were read from the agent and not yet returned."""
        self._broker_chunks: list[bytes] = []
        """Bytes that were read from the broker and not yet returned."""
        self._buffer = bytearray()
        self._tail = bytearray(partial_line)
        self._call: bytes | None = None

    def waiting(self) -> int:
        """Return the number of bytes that `read` would return without waiting."""
        count = sum(map(len, self._agent_chunks)) + self._agent.waiting()
        if not self._tail and not count:
            count = sum(map(len, self._broker_chunks)) + (
                self._broker.waiting() if self._broker else 0
            )
        return count

    async def read(self, max_bytes: int = 65536) -> bytes:
        """Return bytes of the agent, or requests of the broker as whole lines."""
        while True:
            if self._agent_chunks:
                return self._scan_agent(self._agent_chunks.pop(0))
            if self._tail or self._agent.waiting():
                return self._scan_agent(await self._agent.read(max_bytes))
            if self._broker_chunks and (requests := self._requests(self._broker_chunks.pop(0))):
                return requests
            if self._broker is None:
                return self._scan_agent(await self._agent.read(max_bytes))
            await self._read_either(self._broker, max_bytes)

    async def _read_either(self, broker: ByteReader, max_bytes: int) -> None:
        """Read from the first process that writes. A cancel does not lose bytes."""
        agent = question = None
        try:
            async with asyncio.TaskGroup() as tasks:
                agent = tasks.create_task(self._agent.read(max_bytes))
                question = tasks.create_task(broker.read())
                await asyncio.wait({agent, question}, return_when=asyncio.FIRST_COMPLETED)
                agent.cancel()
                question.cancel()
        finally:
            self._agent_chunks += _result(agent)
            self._broker_chunks += _result(question)

    def _scan_agent(self, data: bytes) -> bytes:
        *lines, rest = (bytes(self._tail) + data).split(b"\n")
        for line in lines:
            if b"ask_user" in line and b"tool_call" in line:
                match = _CALL.search(line)
                self._call = match.group(1) if match else self._call
        # A longer line is not our tool call. The tail only shows that the line is open.
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
        request = {
            "jsonrpc": "2.0",
            "id": f"{REQUEST_PREFIX}{number}",
            "method": METHOD,
            "params": body,
        }
        return json.dumps(request).encode() + b"\n"


def _result(task: asyncio.Task[bytes] | None) -> list[bytes]:
    if task is None or not task.done() or task.cancelled() or task.exception() is not None:
        return []
    return [task.result()]


class JoinedWriter:
    """Writes replies to questions to the broker, and other messages to the agent."""

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
            # The broker was killed in the sandbox: the tool call has already failed there.
            return

    async def aclose(self) -> None:
        """Close both ends. Idempotent."""
        await self._agent.aclose()
        await self._broker.aclose()


class JoinedProcess:
    """A `Process` of two processes. It ends with the agent; closing it ends both.

    `partial_line` is the start of the agent's open line, which was read earlier.
    """

    def __init__(self, agent: Process, broker: Process, *, partial_line: bytes = b"") -> None:
        self._agent = agent
        self._broker = broker
        self.stdin = JoinedWriter(agent.stdin, broker.stdin)
        self.stdout = JoinedReader(agent.stdout, broker.stdout, partial_line)

    @property
    def id(self) -> str:
        """Both ids, in the form that `attach_joined` reads."""
        return f"{self._agent.id}{_SEPARATOR}{self._broker.id}"

    @property
    def stderr(self) -> ByteReader:
        """The agent's stderr. The broker's stderr is discarded."""
        return self._agent.stderr

    async def wait(self) -> int:
        """Return the agent's exit code."""
        return await self._agent.wait()

    async def kill(self) -> None:
        """Kill both process groups."""
        await self._agent.kill()
        await self._broker.kill()

    async def aclose(self) -> None:
        """Kill both process groups and release their pipes. Idempotent."""
        await self._agent.aclose()
        await self._broker.aclose()


async def attach_joined(sandbox: Sandbox, process_id: str, *, partial_line: bytes) -> Process:
    """Attach to a forked process by its old id; the process may be joined or single.

    `partial_line` is the start of a line of the agent that was read before the fork.

    Raises:
        SandboxError: The sandbox has no process with this id.
    """
    agent, joined, broker = process_id.partition(_SEPARATOR)
    process = await sandbox.attach(agent)
    if not joined:
        return process
    return JoinedProcess(process, await sandbox.attach(broker), partial_line=partial_line)
