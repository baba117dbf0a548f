"""The same operations as MCP tools: JSON-RPC 2.0, one reply per POST, no session."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from .errors import ApiError
from .operation import Operation, Service

PROTOCOL = "2025-06-18"

Run = Callable[[Operation, dict[str, Any]], object]


def _tool(operation: Operation) -> dict[str, Any]:
    return {
        "name": operation.name,
        "description": operation.summary,
        "inputSchema": {
            "type": "object",
            "properties": {
                each.name: {"description": each.help, **each.kind.schema()}
                for each in operation.fields
            },
            "required": [each.name for each in operation.fields if each.required],
            "additionalProperties": False,
        },
    }


def _call(service: Service, params: Mapping[str, Any], run: Run) -> dict[str, Any]:
    try:
        operation = service.tool(params.get("name"))
        args = operation.check(params.get("arguments", {}))
        result, failed = run(operation, args), False
    except ApiError as error:
        result, failed = error.body(), True
    text = json.dumps(result, ensure_ascii=False)
    return {
        "content": [{"type": "text", "text": text}],
        "structuredContent": result,
        "isError": failed,
    }


def _result(
    service: Service, method: object, params: Mapping[str, Any], run: Run
) -> dict[str, Any] | None:
    if method == "initialize":
        return {
            "protocolVersion": PROTOCOL,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": service.name, "version": "1"},
        }
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": [_tool(each) for each in service.operations]}
    if method == "tools/call":
        return _call(service, params, run)
    return None


def answer_mcp(
    service: Service, message: Mapping[str, Any], run: Run
) -> tuple[int, dict[str, Any] | None]:
    """Return the HTTP status and the JSON-RPC reply; a notification has no reply."""
    params = message.get("params", {})
    if message.get("jsonrpc") != "2.0" or not isinstance(params, dict):
        return 400, _failure(message.get("id"), -32600, "not a JSON-RPC 2.0 request")
    if "id" not in message:
        return 202, None
    result = _result(service, message.get("method"), params, run)
    if result is None:
        return 200, _failure(message["id"], -32601, f"no method {message.get('method')!r}")
    return 200, {"jsonrpc": "2.0", "id": message["id"], "result": result}


def _failure(ident: object, code: int, text: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": ident, "error": {"code": code, "message": text}}
