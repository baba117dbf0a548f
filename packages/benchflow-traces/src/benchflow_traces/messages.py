"""Messages as the dialects carry them: JSON texts of parts, or structured values."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard, cast

from pydantic_core import from_json as parse_json

from .facts import CalledTool, Message, Role, ToolResult
from .spans import Attribute

MAX_TEXT = 256 * 1024
"""Characters of one text that are kept. A longer text ends with a note."""

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "model": "assistant",
    "ai": "assistant",
    "tool": "tool",
    "function": "tool",
}


def bounded(text: str) -> str:
    """Return `text`, cut at `MAX_TEXT` characters, with `?` in place of lone surrogates."""
    if len(text) > MAX_TEXT:
        text = f"{text[:MAX_TEXT]}\n[{len(text) - MAX_TEXT} characters more]"
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def role_of(value: object) -> Role:
    """Return the role of a message; an unknown role is the user's."""
    return _ROLES.get(str(value).lower(), "user")


def read_json(text: str) -> object:
    """Return the value of a JSON text: that of `json.loads`, in a third of its time.

    Raises:
        ValueError: The text is not JSON.
        RecursionError: The value is nested too deep.
    """
    try:
        return cast("object", parse_json(text))
    except (ValueError, TypeError):
        # It also refuses lone surrogates, and values that are nested deeper than 200.
        return cast("object", json.loads(text))


def from_json(value: object) -> object:
    """Return the value of JSON that a program sent as text. Other values stay as they are."""
    if not isinstance(value, str):
        return value
    try:
        return read_json(value)
    except (ValueError, RecursionError):
        return value


def as_text(value: object) -> str:
    """Return a text as it is, and any other value as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return bounded(value)
    try:
        return bounded(json.dumps(value, ensure_ascii=False, default=str))
    except (ValueError, RecursionError):
        return "[nested too deep]"


def messages_of(value: Attribute) -> tuple[Message, ...]:
    """Return the messages of `gen_ai.input.messages` or a similar attribute, else nothing.

    A message has `parts` (since 1.37 of the conventions) or `content` (OpenAI's chat format).
    """
    if value is None:
        return ()
    document = from_json(value)
    items = [document] if _is_mapping(document) else document
    return tuple([message_of(item) for item in _mappings(items)])


def instructions_of(value: Attribute) -> tuple[Message, ...]:
    """Return the message of `gen_ai.system_instructions`: a list of parts, or a text."""
    if value is None:
        return ()
    document = from_json(value)
    if isinstance(document, str):
        return (Message("system", text=bounded(document)),) if document else ()
    if not _is_list(document):
        return ()
    text = _joined([part_text(part) for part in document])
    return (Message("system", text=text),) if text else ()


def message_of(item: Mapping[str, Any]) -> Message:
    """Return one message of either shape."""
    role = role_of(item.get("role"))
    parts = item.get("parts")
    if not _is_list(parts):
        parts = _parts_of_chat(item, role)
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[CalledTool] = []
    results: list[ToolResult] = []
    for part in parts:
        if not _is_mapping(part):
            texts.append(as_text(part))
            continue
        match part.get("type"):
            case "tool_call" | "tool_use" | "function_call":
                calls.append(_call(part))
            case "tool_call_response" | "tool_result" | "function_call_output":
                results.append(_result(part))
            case "reasoning" | "thinking":
                thoughts.append(_text_of(part))
            case _:
                texts.append(_text_of(part))
    return Message(
        role=role,
        text=_joined(texts),
        reasoning=_joined(thoughts),
        calls=tuple(calls),
        results=tuple(results),
    )


def part_text(part: object) -> str:
    """Return the text of one part; a part without text becomes its type in brackets."""
    return _text_of(part) if _is_mapping(part) else as_text(part)


def _text_of(part: Mapping[str, Any]) -> str:
    for key in ("content", "text", "thinking", "reasoning"):
        if (value := part.get(key)) is not None:
            return as_text(value)
    return f"[{part.get('type', 'part')}]"


def _parts_of_chat(item: Mapping[str, Any], role: Role) -> list[object]:
    content: Any = item.get("content")
    if role == "tool":
        identifier = item.get("tool_call_id", item.get("id"))
        return [{"type": "tool_call_response", "id": identifier, "result": content}]
    parts: list[object] = list(content) if _is_list(content) else [content] if content else []
    for key in ("reasoning_content", "reasoning"):
        if isinstance(item.get(key), str) and item[key]:
            parts.insert(0, {"type": "reasoning", "content": item[key]})
            break
    calls = item.get("tool_calls")
    return [*parts, *({"type": "tool_call", **call} for call in _mappings(calls))]


def _call(part: Mapping[str, Any]) -> CalledTool:
    function = part.get("function")
    inner = function if function is not None and _is_mapping(function) else part
    arguments = inner.get("arguments", inner.get("input", inner.get("args")))
    return CalledTool(
        id=str(part.get("id") or part.get("call_id") or ""),
        name=str(inner.get("name") or "tool"),
        arguments=from_json(arguments),
    )


def _result(part: Mapping[str, Any]) -> ToolResult:
    keys = ("result", "response", "content", "output")
    value = next((part[key] for key in keys if part.get(key) is not None), None)
    if _is_list(value) and all(map(_is_mapping, value)):
        text = _joined([part_text(item) for item in value])
    else:
        text = as_text(value)
    identifier = part.get("id") or part.get("tool_use_id") or part.get("call_id") or ""
    return ToolResult(id=str(identifier), content=text)


def _joined(texts: Sequence[str]) -> str:
    """Return texts that are bounded as one."""
    if len(texts) < 2:
        return texts[0] if texts else ""
    return bounded("\n".join(filter(None, texts)))


def _mappings(value: object) -> list[Mapping[str, Any]]:
    if not _is_list(value):
        return []
    return [item for item in value if _is_mapping(item)]


# `isinstance` with an abstract class costs five times that with `dict` or `list`, which come first.


def _is_mapping(value: object) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, (dict, Mapping))


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, (list, Sequence)) and not isinstance(value, (str, bytes))
