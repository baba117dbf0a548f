"""Tool calls in the formats of the two kinds of trainer rows."""

import json
from typing import Literal

from .messages import Message

ToolCallFormat = Literal["verifiers", "openai"]
"""Verifiers rows hold JSON strings; SFT readers such as prime-rl's need OpenAI's dicts."""


def render_tool_calls(message: Message, tool_calls: ToolCallFormat) -> Message:
    """Return a copy of an OpenAI message with its tool calls in the format `tool_calls`.

    A Verifiers assistant turn has the keys `role`, `content`, `tool_calls` and
    `reasoning_content`, in this order; a call is the JSON text of a flat object.
    """
    if tool_calls == "openai" or "tool_calls" not in message:
        return dict(message)
    calls = [
        json.dumps(
            {
                "id": call["id"],
                "name": call["function"]["name"],
                "arguments": call["function"]["arguments"],
            }
        )
        for call in message["tool_calls"]
    ]
    rendered = {"role": message["role"], "content": message["content"], "tool_calls": calls}
    return {**rendered, **{k: v for k, v in message.items() if k not in rendered}}
