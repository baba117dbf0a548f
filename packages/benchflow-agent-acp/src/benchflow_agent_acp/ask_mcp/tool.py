"""Give a role the portable `ask_user` tool."""

from __future__ import annotations

import secrets
from importlib.resources import as_file, files
from typing import TYPE_CHECKING

from benchflow_contracts import AgentError, McpServer, Process, Role, Sandbox, SandboxError
from benchflow_contracts.pausing import running_timeout

from benchflow_agent_acp.in_sandbox.ask_tool.broker_protocol import SOCKET, decode

if TYPE_CHECKING:
    from benchflow_agent_acp.declaration import AgentDecl

ASK_MCP_SWITCH = "BENCHFLOW_ASK_MCP"
"""The variable of a role's env that turns the tool on (`1`) or off, whatever the declaration."""

SERVER_NAME = "benchflow"
TARGET = "/opt/benchflow/benchflow_ask"
_READY_SEC = 60.0
_SPAWN = 'exec python3 -I "$0" broker 2>/dev/null'


def wants_tool(decl: AgentDecl, role: Role) -> bool:
    """Return whether this role gets the tool."""
    switch = role.env.get(ASK_MCP_SWITCH)
    return decl.ask.mcp if switch is None else switch == "1"


class AskTool:
    """The tool of one session: its broker and its MCP server."""

    def __init__(self, decl: AgentDecl, sandbox: Sandbox, role: Role) -> None:
        self._sandbox = sandbox
        self._role = role
        self._name = decl.ask.tool
        # The token separates the sessions of one sandbox. It is not a secret inside the sandbox.
        self._token = secrets.token_hex(8)

    async def start(self) -> tuple[Process, Role]:
        """Start the broker, which listens on return; return the role with the tool.

        Raises:
            AgentError: The sandbox does not have python3 >= 3.11.
        """
        with as_file(files("benchflow_agent_acp").joinpath("in_sandbox/ask_tool")) as program:
            await self._sandbox.upload(program, TARGET)
        try:
            broker = await self._sandbox.spawn(
                ["sh", "-c", _SPAWN, TARGET], env={SOCKET: self._token}
            )
        except SandboxError as error:
            raise AgentError(f"the ask tool did not start: {error}") from error
        try:
            python = await _wait_until_ready(broker)
        except BaseException:
            await broker.aclose()
            raise
        return broker, self._with_server(python)

    def _with_server(self, python: str) -> Role:
        # Use the path of Python: an agent may put its own Python in front of PATH. The token is not
        # in the arguments: an agent may show them to its model, and every run has a new token.
        args = ("-I", TARGET, "server", self._name)
        env = {SOCKET: self._token}
        server = McpServer(name=SERVER_NAME, command=python, args=args, env=env)
        return self._role.model_copy(update={"mcp_servers": (*self._role.mcp_servers, server)})


async def _wait_until_ready(broker: Process) -> str:
    """Return the path of the Python that runs the broker."""
    line = b""
    try:
        async with running_timeout(_READY_SEC):
            while not line.endswith(b"\n") and len(line) < 4096:
                chunk = await broker.stdout.read()
                if not chunk:
                    break
                line += chunk
    except TimeoutError as error:
        raise AgentError(f"the ask tool was not ready within {_READY_SEC:g} s") from error
    message = decode(line)
    python = message.get("python")
    if message.get("ready") is not True or not isinstance(python, str) or not python:
        raise AgentError(
            "the ask tool did not start in the sandbox",
            hint="install python3 >= 3.11 there, or remove BENCHFLOW_ASK_MCP from the role",
        )
    return python
