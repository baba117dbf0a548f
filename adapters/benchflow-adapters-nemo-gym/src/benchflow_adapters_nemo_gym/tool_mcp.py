"""MCP over HTTP without state: one message in, one message out.

Source of the format: the MCP specification of 2025-06-18, and `FastMCP(stateless_http=True,
json_response=True)`, which NeMo Gym's resources servers use.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from benchflow_contracts import BenchFlowError
from benchflow_tool_sessions import ToolSession

_VERSIONS: Final = ("2025-06-18", "2025-03-26", "2024-11-05")
_INVALID: Final = -32600
_UNKNOWN: Final = -32601


async def answer_message(
    message: Mapping[str, Any], find_session: Callable[[], ToolSession], server_name: str
) -> dict[str, Any] | None:
    """Return the answer to a message; None for a notification.

    `find_session` is called for tools alone. If it raises, a tool call has an error as its result,
    as of NeMo Gym's own servers, and a list of tools has an error of the protocol.
    """
    identifier, method = message.get("id"), message.get("method")
    if not isinstance(method, str) or identifier is None:
        return None
    answer: dict[str, Any] = {"jsonrpc": "2.0", "id": identifier}
    params = message.get("params", {})
    if not isinstance(identifier, str | int) or not isinstance(params, dict):
        return answer | {"id": None, "error": {"code": _INVALID, "message": "invalid request"}}
    checked = cast("dict[str, Any]", params)
    match method:
        case "initialize":
            asked = checked.get("protocolVersion")
            return answer | {
                "result": {
                    "protocolVersion": asked if asked in _VERSIONS else _VERSIONS[0],
                    "capabilities": {"tools": {"listChanged": False}},
                    "serverInfo": {"name": server_name, "version": "1.0.0"},
                }
            }
        case "ping":
            return answer | {"result": {}}
        case "tools/list":
            try:
                return answer | {"result": {"tools": await _tools_of(find_session())}}
            except BenchFlowError as error:
                return answer | {"error": {"code": _INVALID, "message": str(error)}}
        case "tools/call":
            return answer | {"result": await _call(checked, find_session)}
        case _:
            return answer | {"error": {"code": _UNKNOWN, "message": "method not found"}}


async def _tools_of(session: ToolSession) -> list[dict[str, Any]]:
    return [
        {
            "name": tool.name,
            "description": tool.description,
            "inputSchema": dict(tool.input_schema),
        }
        for tool in await session.tools()
    ]


async def _call(
    params: Mapping[str, Any], find_session: Callable[[], ToolSession]
) -> dict[str, Any]:
    try:
        result = await find_session().call(str(params.get("name")), params.get("arguments"))
    except BenchFlowError as error:
        return {"content": [{"type": "text", "text": str(error)}], "isError": True}
    return {"content": [dict(block) for block in result.blocks], "isError": result.is_error}
