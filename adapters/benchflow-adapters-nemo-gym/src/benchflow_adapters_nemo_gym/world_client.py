"""A resources server of NeMo Gym as a world: one session, played by tool calls.

Source of the format: nemo-gym 0.4.0, `simple_agent` and `gymnasium_agent`, and the servers of
`nemo_gym.base_resources_server` and `resources_servers.gymnasium`.
"""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, cast
from uuid import uuid4

import httpx
from benchflow_contracts import EnvironmentError_
from benchflow_env_outside import Conversation, WorldAnswer, WorldTool

from .hostile_json import as_list, as_object, as_text, text_of
from .openapi_tools import tools_of_openapi
from .responses import function_call, make_response, message_item, tool_output

RESPOND: Final = "respond"
"""The tool of a gymnasium server: it sends a message, and returns the next observation."""
_RESPOND_TOOL: Final = WorldTool(
    RESPOND,
    "Send a message to the environment. Returns its next message.",
    {
        "type": "object",
        "properties": {"message": {"type": "string", "description": "Your message."}},
        "required": ["message"],
    },
)
_RESERVED: Final = frozenset(
    {"verify", "seed_session", "aggregate_metrics", "mcp", "reset", "step"}
)
_NOT_FOUND: Final = (404, 405)
_MAX_BYTES: Final = 16 * 1024 * 1024
_SEC: Final = 300.0


class NemoGymClient:
    """A session of a resources server. The task's data is the row.

    A server with `/verify` gives its reward at the end. A server with `/reset` and `/step` gives a
    reward for each step; a message or a tool call of the agent is one step.
    """

    def __init__(self, url: str, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/"), timeout=_SEC, transport=transport, trust_env=False
        )
        self._row: dict[str, Any] = {}
        self._paths: dict[str, Any] = {}
        self._openapi: dict[str, Any] = {}
        self._mcp: tuple[str, dict[str, str]] | None = None
        self._mcp_tools: frozenset[str] = frozenset()
        self._is_finished = False

    @property
    def _is_gymnasium(self) -> bool:
        return "/step" in self._paths and "/verify" not in self._paths

    async def open(self, task: Mapping[str, Any], seed: int) -> WorldAnswer:
        """Seed or reset a session. The text is the input of the row, and the first observation."""
        del seed  # NeMo Gym has no seed of a session; a row may have one of its own.
        self._row = dict(task)
        described = await self._request("GET", "/openapi.json")
        # Ours has no description; the row and MCP have its tools.
        if described.status_code not in _NOT_FOUND:
            self._openapi = _object_of(described, "/openapi.json")
        self._paths = as_object(self._openapi.get("paths"))
        prompt = prompt_of(self._row)
        if self._is_gymnasium:
            reply = await self._json("POST", "/reset", self._row)
            observation = as_text(reply.get("observation"))
            return WorldAnswer("\n\n".join(part for part in (prompt, observation) if part))
        reply = await self._json("POST", "/seed_session", self._row)
        access = as_object(reply.get("mcp"))
        if access:
            headers = {str(k): str(v) for k, v in as_object(access.get("headers")).items()}
            self._mcp = (as_text(access.get("url_path")) or "/mcp", headers)
        return WorldAnswer(prompt)

    async def tools(self) -> Sequence[WorldTool]:
        """Return the tools of the row, of MCP, or else of the routes of the server."""
        found = {tool.name: tool for tool in row_tools(self._row)}
        if self._mcp is not None:
            listed = await self._tools_of_mcp()
            self._mcp_tools = frozenset(tool.name for tool in listed)
            found.update({tool.name: tool for tool in listed})
        if not found and not self._is_gymnasium:
            found = {tool.name: tool for tool in tools_of_openapi(self._openapi, _RESERVED)}
        if self._is_gymnasium:
            found[RESPOND] = _RESPOND_TOOL
        return list(found.values())

    async def call(self, name: str, arguments: Mapping[str, Any]) -> WorldAnswer:
        """Call a tool. A status of an error is the agent's failure, as for NeMo Gym's agents."""
        if self._is_gymnasium:
            return await self._step_by(name, arguments)
        if name in self._mcp_tools:
            return await self._call_by_mcp(name, arguments)
        response = await self._request("POST", f"/{name}", dict(arguments))
        return WorldAnswer(response.text, failed=response.is_error)

    async def finish(self, conversation: Conversation) -> WorldAnswer | None:
        """Verify, or let a gymnasium server judge the last message of an open episode."""
        if self._is_gymnasium:
            if self._is_finished or not conversation.last_message:
                return None
            return await self._step([message_item(conversation.last_message)])
        response = make_response(items_of(conversation))
        reply = await self._json("POST", "/verify", self._row | {"response": response})
        parts = as_object(reply.get("reward_components"))
        return WorldAnswer(
            reward=_number_of(reply.get("reward"), "/verify"),
            parts={
                key: _number_of(value, "/verify")
                for key, value in parts.items()
                if _is_number(value)
            },
        )

    async def close(self) -> None:
        """Close the connections. NeMo Gym has no call that ends a session."""
        await self._http.aclose()

    async def _step_by(self, name: str, arguments: Mapping[str, Any]) -> WorldAnswer:
        if name == RESPOND:
            message = arguments.get("message")
            if not isinstance(message, str):
                return WorldAnswer("message must be a text", failed=True)
            return await self._step([message_item(message)])
        call_id = f"call-{uuid4().hex}"
        return await self._step([function_call(call_id, name, arguments)], call_id)

    async def _step(self, output: list[dict[str, Any]], call_id: str = "") -> WorldAnswer:
        body = self._row | {"response": make_response(output)}
        reply = await self._json("POST", "/step", body)
        reward = _number_of(reply.get("reward"), "/step")
        self._is_finished = bool(reply.get("terminated") or reply.get("truncated"))
        outputs = as_list(as_object(reply.get("info")).get("tool_outputs"))
        texts = [
            as_text(found.get("output"))
            for found in map(as_object, outputs)
            if found.get("call_id") == call_id
        ]
        texts.append(as_text(reply.get("observation")))
        return WorldAnswer(
            "\n\n".join(text for text in texts if text),
            reward=reward,
            finished=self._is_finished,
            space="action",
        )

    async def _tools_of_mcp(self) -> list[WorldTool]:
        result = as_object(await self._rpc("tools/list", {}))
        return [
            WorldTool(
                as_text(tool.get("name")),
                as_text(tool.get("description")),
                as_object(tool.get("inputSchema")) or {"type": "object"},
            )
            for tool in map(as_object, as_list(result.get("tools")))
        ]

    async def _call_by_mcp(self, name: str, arguments: Mapping[str, Any]) -> WorldAnswer:
        result = await self._rpc("tools/call", {"name": name, "arguments": dict(arguments)})
        return WorldAnswer(text_of(result.get("content")), failed=bool(result.get("isError")))

    async def _rpc(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        path, headers = self._mcp or ("/mcp", {})
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        accept = {"Accept": "application/json, text/event-stream"}
        response = await self._request("POST", path, message, headers=headers | accept)
        reply = _object_of(response, path)
        if "error" in reply:
            raise EnvironmentError_(f"MCP {method} failed: {str(reply['error'])[:300]}")
        return as_object(reply.get("result"))

    async def _json(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        return _object_of(await self._request(method, path, body), path)

    async def _request(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        # The client keeps the cookies: a request without them begins a session of its own.
        request = self._http.build_request(method, path, json=body, headers=headers)
        response = await self._http.send(request, stream=True)
        try:
            content = bytearray()
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > _MAX_BYTES:
                    raise EnvironmentError_(f"{path} returned more than {_MAX_BYTES} bytes")
        finally:
            await response.aclose()
        return httpx.Response(
            response.status_code, content=bytes(content), request=response.request
        )


def prompt_of(row: Mapping[str, Any]) -> str:
    """Return the texts of a row's input, the instructions first."""
    params = as_object(row.get("responses_create_params"))
    given = params.get("input")
    texts = [as_text(params.get("instructions"))]
    if isinstance(given, str):
        texts.append(given)
    texts += [text_of(message.get("content")) for message in map(as_object, as_list(given))]
    return "\n\n".join(text for text in texts if text)


def row_tools(row: Mapping[str, Any]) -> list[WorldTool]:
    """Return the function tools of a row."""
    params = as_object(row.get("responses_create_params"))
    return [
        WorldTool(
            as_text(tool.get("name")),
            as_text(tool.get("description")),
            as_object(tool.get("parameters")) or {"type": "object", "properties": {}},
        )
        for tool in map(as_object, as_list(params.get("tools")))
        if tool.get("type") == "function" and tool.get("name")
    ]


def items_of(conversation: Conversation) -> list[dict[str, Any]]:
    """Return the calls of the world's tools, with their results, and the last message.

    Calls of other tools, such as the agent's shell, are not the world's concern.
    """
    items: list[dict[str, Any]] = []
    for number, call in enumerate(each for each in conversation.calls if each.operation == "call"):
        arguments = as_object(json.loads(call.arguments or "{}"))
        items.append(function_call(f"call-{number}", call.tool, arguments))
        items.append(tool_output(f"call-{number}", call.result))
    if conversation.last_message:
        items.append(message_item(conversation.last_message))
    return items


def _object_of(response: httpx.Response, path: str) -> dict[str, Any]:
    if response.is_error:
        raise EnvironmentError_(f"{path} returned {response.status_code}: {response.text[:300]}")
    try:
        found: object = response.json()
    except (ValueError, RecursionError) as error:
        raise EnvironmentError_(f"{path} did not return JSON: {response.text[:300]}") from error
    if not isinstance(found, dict):
        raise EnvironmentError_(f"{path} did not return an object: {response.text[:300]}")
    return as_object(cast("object", found))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number_of(value: object, path: str) -> float:
    """Return a reward, which must be a finite number."""
    number = math.nan
    if _is_number(value):
        # An integer may be too large for a float.
        with suppress(OverflowError):
            number = float(cast("float", value))
    if not math.isfinite(number):
        raise EnvironmentError_(f"{path} returned the reward {str(value)!r:.100}")
    return number
