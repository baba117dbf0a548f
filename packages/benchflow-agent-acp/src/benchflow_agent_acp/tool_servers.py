"""Pass the role's tool servers to an agent: in `session/new`, or in a variable."""

import json
from typing import Any

from benchflow_contracts import AgentError, McpServer

from .declaration import McpSection


def servers_on_wire(section: McpSection, servers: tuple[McpServer, ...]) -> list[Any]:
    """Return `mcpServers` for `session/new`. The schema of the request checks the value."""
    return [_on_wire(server) for server in servers] if section.transport == "acp" else []


def servers_in_env(section: McpSection, servers: tuple[McpServer, ...]) -> dict[str, str]:
    """Return the variable that lists the servers for the agent's program, as JSON.

    Raises:
        AgentError: A server does not use stdio.
    """
    if section.transport != "env" or not servers:
        return {}
    for server in servers:
        if server.transport != "stdio":
            raise AgentError(
                f"tool server {server.name!r} uses {server.transport!r}, but this agent takes"
                " servers over 'stdio' only",
                hint="choose an agent that takes tool servers over ACP",
            )
    return {section.variable: json.dumps([_in_env(section, server) for server in servers])}


def _on_wire(server: McpServer) -> dict[str, Any]:
    if server.transport == "stdio":
        return {
            "name": server.name,
            "command": server.command or "",
            "args": list(server.args),
            "env": [{"name": name, "value": value} for name, value in server.env.items()],
        }
    headers = [{"name": name, "value": value} for name, value in server.headers.items()]
    return {"type": server.transport, "name": server.name, "url": server.url, "headers": headers}


def _in_env(section: McpSection, server: McpServer) -> dict[str, Any]:
    return {
        **section.fields,
        "name": server.name,
        "transport": server.transport,
        "command": server.command or "",
        "args": list(server.args),
        "env": dict(server.env),
    }
