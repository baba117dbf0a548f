"""Serves the tools of MCP servers to a client that calls them one by one, without a model."""

from dataclasses import replace
from typing import NoReturn

from .errors import ToolError, TurnCancelledError
from .mcp_tools import McpTools
from .settings import Settings
from .wire import Json, Wire, as_list, as_object


class ToolServer:
    """Serves one client: `tools/open`, and then any number of `tools/call`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._wire = Wire()
        self._tools: McpTools | None = None

    def serve(self) -> NoReturn:
        """Serve requests until the client closes the pipe."""
        while True:
            message = self._wire.receive()
            params = as_object(message.get("params"))
            try:
                if message.get("method") == "tools/open":
                    result = self._open(params)
                else:
                    result = self._call(params)
            except (ToolError, TurnCancelledError, KeyError, TypeError, ValueError) as error:
                error_body = {"code": -32000, "message": str(error)[:2000]}
                self._wire.send(id=message.get("id"), error=error_body)
            else:
                self._wire.send(id=message.get("id"), result=result)

    def _open(self, params: Json) -> Json:
        settings = replace(self._settings, tool_timeout=float(params["callSec"]))
        self._tools = tools = McpTools(self._wire, settings, params["cwd"])
        tools.connect(as_list(params.get("mcpServers")))
        return {
            "tools": [
                {"name": t.name, "description": t.description, "inputSchema": t.parameters}
                for t in tools.tools
            ]
        }

    def _call(self, params: Json) -> Json:
        if self._tools is None:
            raise ToolError("the tools are not open")
        return self._tools.call(params["name"], as_object(params.get("arguments")))


def main() -> NoReturn:
    """Serve on the standard streams."""
    ToolServer(Settings.from_env()).serve()
