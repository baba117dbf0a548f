"""The tools of the MCP servers that the client named."""

import re
from collections.abc import Callable, Iterable

from .errors import ToolError
from .mcp_connection import (
    PROTOCOL_VERSION,
    HttpConnection,
    McpConnection,
    StdioConnection,
)
from .settings import Settings
from .tool import Tool, ToolResult, clip
from .wire import Json, Wire, as_list, as_object

_START_SEC = 30.0
_TOOLS = 128
_PAGES = 16
_NAME_CHARS = 64
_DESCRIPTION_CHARS = 4000
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


class McpTools:
    """Connections to the session's tool servers, and their tools in a fixed order."""

    def __init__(self, wire: Wire, settings: Settings, cwd: str) -> None:
        self._wire = wire
        self._settings = settings
        self._cwd = cwd
        self._servers: list[McpConnection] = []
        self._calls: dict[str, tuple[McpConnection, str]] = {}
        self.tools: list[Tool] = []

    def connect(self, configs: Iterable[object]) -> None:
        """Start the servers and list their tools.

        Raises:
            ToolError: A server did not start or does not speak MCP.
        """
        for config in map(as_object, configs):
            name = str(config.get("name") or "tools")
            try:
                self._connect(name, config)
            except ToolError as error:
                self.close()
                raise ToolError(f"tool server {name!r}: {error}") from error

    def close(self) -> None:
        """Close the connections. Idempotent."""
        for server in self._servers:
            server.close()
        self._servers = []

    def _connect(self, name: str, config: Json) -> None:
        connection = self._open(config)
        self._servers.append(connection)
        client = {"name": "benchflow-policy", "version": "1.0.0"}
        params = {"protocolVersion": PROTOCOL_VERSION, "capabilities": {}, "clientInfo": client}
        connection.call("initialize", params, _START_SEC)
        connection.notify("notifications/initialized")
        cursor: Json = {}
        for _ in range(_PAGES):
            page = connection.call("tools/list", cursor, _START_SEC)
            for item in map(as_object, as_list(page.get("tools"))):
                self._add(name, connection, item)
            if not isinstance(page.get("nextCursor"), str):
                return
            cursor = {"cursor": page["nextCursor"]}

    def _open(self, config: Json) -> McpConnection:
        if config.get("type") == "http":
            return HttpConnection(self._wire, config)
        if config.get("type", "stdio") == "stdio" and "command" in config:
            return StdioConnection(self._wire, config, self._cwd)
        raise ToolError("the transport must be stdio or http")

    def _add(self, server: str, connection: McpConnection, item: Json) -> None:
        tool_name = item.get("name")
        if not isinstance(tool_name, str) or len(self.tools) >= _TOOLS:
            return
        name = _UNSAFE.sub("_", f"mcp__{server}__{tool_name}")[:_NAME_CHARS]
        if any(tool.name == name for tool in self.tools):
            return
        schema = as_object(item.get("inputSchema")) or {"type": "object", "properties": {}}
        description = str(item.get("description") or tool_name)[:_DESCRIPTION_CHARS]
        self._calls[name] = connection, tool_name
        self.tools.append(Tool(name, description, schema, self._runner(name)))

    def call(self, name: str, arguments: Json) -> Json:
        """Return the result of a tool call as the server gave it.

        Raises:
            ToolError: The server refused, failed, or was silent for too long.
        """
        connection, tool_name = self._calls[name]
        params = {"name": tool_name, "arguments": arguments}
        return connection.call("tools/call", params, self._settings.tool_timeout)

    def _runner(self, name: str) -> Callable[[Json], ToolResult]:
        def run(arguments: Json) -> ToolResult:
            result = self.call(name, arguments)
            text = clip(_text(result), self._settings.output_chars)
            return ToolResult(text or "[no output]", failed=result.get("isError") is True)

        return run


def _text(result: Json) -> str:
    parts: list[str] = []
    for block in map(as_object, as_list(result.get("content"))):
        text = block.get("text")
        parts.append(text if isinstance(text, str) else f"[{block.get('type', 'block')!s:.40}]")
    return "\n".join(parts)
