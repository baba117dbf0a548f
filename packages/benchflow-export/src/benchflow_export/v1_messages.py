"""OpenAI chat messages in the format of Verifiers v1, with flat tool calls."""

from typing import Any

from .messages import Message

_ROLES = {"system", "user", "assistant", "tool"}


def v1_message(message: Message) -> dict[str, Any]:
    """Return a `SystemMessage`, `UserMessage`, `AssistantMessage` or `ToolMessage`.

    A role that v1 does not have, such as `developer`, becomes `system`.
    """
    role = message["role"] if message["role"] in _ROLES else "system"
    made: dict[str, Any] = {"role": role, "content": message.get("content") or ""}
    if role == "tool":
        made["tool_call_id"] = str(message.get("tool_call_id", ""))
    if role == "assistant":
        if message.get("reasoning_content"):
            made["reasoning_content"] = message["reasoning_content"]
        if message.get("tool_calls"):
            made["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    return made


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {"id": call["id"], "name": function["name"], "arguments": function["arguments"]}
