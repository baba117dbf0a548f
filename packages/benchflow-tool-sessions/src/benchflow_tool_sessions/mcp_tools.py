"""The tools of the task's MCP servers, called by a program inside the sandbox.

The program connects to the servers as any agent does: as the agent's user, from inside.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from importlib.resources import as_file, files
from typing import Any, Final, Self

from benchflow_agent_acp.declaration import McpSection
from benchflow_agent_acp.framing import as_object, is_noise, parse_message, split_lines
from benchflow_agent_acp.tool_servers import servers_on_wire
from benchflow_contracts import (
    AgentError,
    AgentProtocolError,
    Process,
    Role,
    Sandbox,
    SandboxError,
    SnapshotError,
    caused_outside,
)
from benchflow_contracts.pausing import running_timeout

from .arguments import ToolError, cleaned, cut
from .results import SessionLimits, ToolResult, ToolSpec

_TARGET: Final = "/opt/benchflow/benchflow_tools"
# A pipe that nobody reads would block the servers.
_START: Final = f"exec python3 -I {_TARGET} tool_server 2>/dev/null"
_LINE_BYTES: Final = 16 * 1024 * 1024
_DEPTH: Final = 100
_MOST_TOOLS: Final = 128
_OPEN_SEC: Final = 60.0
_GRACE_SEC: Final = 10.0


class McpTools:
    """A program in the sandbox that calls the tools of MCP servers. Make one by `start`."""

    def __init__(self, process: Process, limits: SessionLimits) -> None:
        self._process = process
        self._limits = limits
        self._buffer = bytearray()
        self._lines: list[bytes] = []
        self._ids = 0
        self._end: str | None = None
        self.specs: Sequence[ToolSpec] = ()

    @classmethod
    async def start(cls, sandbox: Sandbox, role: Role, limits: SessionLimits) -> Self:
        """Start the program, connect to the servers of the role, and list their tools.

        Raises:
            AgentError: The sandbox has no Python, or a server did not start.
        """
        with as_file(files("benchflow_agent_policy").joinpath("in_sandbox")) as program:
            await sandbox.upload(program, _TARGET)
        env = {"PYTHONUTF8": "1", **role.env}
        tools = cls(await sandbox.spawn(["sh", "-c", _START], env=env), limits)
        try:
            await tools._open(sandbox.spec.workdir, role)
        except BaseException:
            await tools.aclose()
            raise
        return tools

    @classmethod
    async def attach(cls, sandbox: Sandbox, data: Mapping[str, Any], limits: SessionLimits) -> Self:
        """Continue with the program that is in `sandbox` from a live image; see `capture`."""
        tools = cls(await sandbox.attach(str(data["process"])), limits)
        tools._ids = int(data["requests"])
        tools.specs = tuple(ToolSpec(*spec) for spec in data["specs"])
        return tools

    def capture(self) -> dict[str, Any]:
        """Return what `attach` needs. No call may run.

        Raises:
            SnapshotError: The program has failed.
        """
        if self._end is not None:
            raise SnapshotError(f"the tools of the MCP servers cannot be copied: {self._end}")
        specs = [[each.name, each.description, dict(each.input_schema)] for each in self.specs]
        return {"process": self._process.id, "requests": self._ids, "specs": specs}

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool; see `Tools.call`."""
        params = {"name": name, "arguments": arguments}
        result = await self._ask("tools/call", params, self._limits.call_sec + _GRACE_SEC)
        blocks = [as_object(block) for block in _list(result.get("content"))]
        whole = "\n".join(map(_text_of, blocks))
        text, is_cut = cut(cleaned(whole), self._limits.output_chars)
        is_plain = is_cut or all(block.get("type") == "text" for block in blocks)
        return ToolResult(
            text or "[no output]",
            is_error=result.get("isError") is True,
            truncated=is_cut,
            data=as_object(result.get("structuredContent")) or None,
            content=None if is_plain else tuple(blocks),
        )

    async def aclose(self) -> None:
        """End the program and the servers that it started. Idempotent."""
        await self._process.aclose()

    async def _open(self, workdir: str, role: Role) -> None:
        servers = servers_on_wire(McpSection(transport="acp"), role.mcp_servers)
        params = {"cwd": workdir, "mcpServers": servers, "callSec": self._limits.call_sec}
        try:
            result = await self._ask("tools/open", params, _OPEN_SEC)
        except ToolError as error:
            raise AgentError(
                f"the tool servers of the task did not start: {error}",
                hint="the sandbox needs python3 >= 3.11, and each server must speak MCP",
            ) from error
        found = [as_object(tool) for tool in _list(result.get("tools"))[:_MOST_TOOLS]]
        self.specs = tuple(
            ToolSpec(str(tool["name"]), str(tool["description"]), as_object(tool["inputSchema"]))
            for tool in found
        )

    async def _ask(self, method: str, params: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        if self._end is not None:
            raise ToolError(self._end)
        self._ids += 1
        request = {"jsonrpc": "2.0", "id": self._ids, "method": method, "params": params}
        scope = running_timeout(seconds)
        try:
            async with scope:
                await self._process.stdin.write(json.dumps(request).encode() + b"\n")
                message = await self._reply()
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise self._fail(f"no tool server answered within {seconds:g} s") from error
        except (SandboxError, AgentProtocolError) as error:
            if caused_outside(error):
                raise
            raise self._fail(f"the program of the tools failed: {error!s:.300}") from error
        except asyncio.CancelledError:
            self._end = "an earlier call was cancelled"
            raise
        if "error" in message:
            raise ToolError(str(as_object(message["error"]).get("message")))
        return as_object(message.get("result"))

    async def _reply(self) -> dict[str, Any]:
        """Return the response to the newest request."""
        while True:
            while self._lines:
                line = self._lines.pop(0)
                if is_noise(line):
                    continue
                message = parse_message(line, max_depth=_DEPTH)
                if message.get("id") == self._ids:
                    return message
            chunk = await self._process.stdout.read()
            if not chunk:
                raise self._fail("the program of the tools has ended")
            self._lines += split_lines(self._buffer, chunk, limit=_LINE_BYTES)

    def _fail(self, reason: str) -> ToolError:
        """Refuse all further calls: an answer could belong to an earlier call."""
        self._end = reason
        return ToolError(reason)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType]


def _text_of(block: Mapping[str, Any]) -> str:
    text = block.get("text")
    return text if isinstance(text, str) else f"[{block.get('type', 'block')!s:.40}]"
