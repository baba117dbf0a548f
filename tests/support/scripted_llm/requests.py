"""Reading a request of each wire."""

import json
import re
from collections.abc import Callable
from typing import Any

from .exchange import ModelRequest, Wire

JOIN = "__"
"""Between a namespace and the name of a tool in it."""

PATHS: dict[str, Wire] = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}


_GEMINI = re.compile(r"/v1(?:beta)?/models/(.+):(generateContent|streamGenerateContent)")
READERS: dict[Wire, Callable[[dict[str, Any]], tuple[dict[str, Any], str, list[str]]]]


def gemini_call(path: str) -> tuple[str, bool] | None:
    """Return the model that a path names, and whether it asks for a stream."""
    found = _GEMINI.fullmatch(path)
    return (found[1], found[2].startswith("stream")) if found else None


def read_request(
    wire: Wire,
    body: dict[str, Any],
    headers: dict[str, str],
    called: tuple[str, bool] | None = None,
) -> ModelRequest:
    tools, said, results = READERS[wire](body)
    model, stream = called or (body.get("model", ""), bool(body.get("stream")))
    return ModelRequest(
        wire=wire,
        model=model,
        stream=stream,
        tools=tools,
        user_text=said,
        tool_results=tuple(results),
        raw=body,
        headers=headers,
    )


def namespaces(body: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the tools of each namespace of a Responses request: Codex's tool servers."""
    tools = body.get("tools") or []
    return {tool["name"]: tool["tools"] for tool in tools if tool.get("type") == "namespace"}


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(part.get("text", "") for part in parts if isinstance(part, dict))


def _chat(body: dict[str, Any]) -> tuple[dict[str, Any], str, list[str]]:
    tools = {
        tool["function"]["name"]: tool["function"].get("parameters", {})
        for tool in body.get("tools") or []
    }
    said, results = "", list[str]()
    for message in body.get("messages", []):
        if message["role"] == "user":
            said, results = _text(message.get("content")), []
        elif message["role"] == "tool":
            results.append(_text(message.get("content")))
    return tools, said, results


def _responses(body: dict[str, Any]) -> tuple[dict[str, Any], str, list[str]]:
    tools = {
        tool["name"]: tool.get("parameters", {})
        for tool in body.get("tools") or []
        if tool.get("type") == "function"
    }
    for name, space in namespaces(body).items():
        tools |= {f"{name}{JOIN}{tool['name']}": tool.get("parameters", {}) for tool in space}
    said, results = "", list[str]()
    items = body.get("input", [])
    for item in [{"role": "user", "content": items}] if isinstance(items, str) else items:
        if item.get("role") == "user":
            said, results = _text(item.get("content")), []
        elif item.get("type") == "function_call_output":
            results.append(str(item.get("output")))
    return tools, said, results


def _messages(body: dict[str, Any]) -> tuple[dict[str, Any], str, list[str]]:
    tools = {tool["name"]: tool.get("input_schema", {}) for tool in body.get("tools") or []}
    said, results = "", list[str]()
    for message in body.get("messages", []):
        if message["role"] != "user":
            continue
        content = message["content"]
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        seen = [block for block in blocks if block.get("type") == "tool_result"]
        if seen:
            results += [json.dumps(block.get("content")) for block in seen]
        else:
            said, results = _text(blocks), []
    return tools, said, results


def _gemini(body: dict[str, Any]) -> tuple[dict[str, Any], str, list[str]]:
    tools = {
        declared["name"]: declared.get("parametersJsonSchema") or declared.get("parameters") or {}
        for tool in body.get("tools") or []
        for declared in tool.get("functionDeclarations") or []
    }
    said, results = "", list[str]()
    for content in body.get("contents", []):
        if content.get("role") == "model":
            continue
        parts = content.get("parts", [])
        seen = [part["functionResponse"] for part in parts if "functionResponse" in part]
        if seen:
            results += [json.dumps(response.get("response")) for response in seen]
        else:
            said, results = _text(parts), []
    return tools, said, results


READERS = {"chat": _chat, "responses": _responses, "messages": _messages, "gemini": _gemini}
