"""Items and responses of the Responses API, as NeMo Gym reads them.

Source of the format: nemo-gym 0.4.0, `nemo_gym.openai_utils`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

TOKEN_FIELDS: Final = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
"""The fields of an output item from which NeMo-RL trains."""


def message_item(text: str) -> dict[str, Any]:
    """Return a message of the assistant."""
    return {
        "type": "message",
        "id": f"msg_{uuid4().hex}",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }


def reasoning_item(text: str) -> dict[str, Any]:
    """Return a reasoning of the assistant."""
    summary = [{"type": "summary_text", "text": text}]
    return {"type": "reasoning", "id": f"rs_{uuid4().hex}", "summary": summary}


def function_call(call_id: str, name: str, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
    """Return a tool call. Arguments that are a text are JSON already."""
    text = arguments if isinstance(arguments, str) else json.dumps(dict(arguments))
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": text}


def tool_output(call_id: str, text: str) -> dict[str, Any]:
    """Return the result of a tool call."""
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def make_response(
    output: Sequence[Mapping[str, Any]],
    *,
    model: str = "benchflow",
    usage: tuple[int, int] | None = None,
    created_at: float = 0.0,
) -> dict[str, Any]:
    """Return a whole response. `usage` has the tokens of the input and the output."""
    response: dict[str, Any] = {
        "id": f"resp_{uuid4().hex}",
        "created_at": created_at,
        "model": model,
        "object": "response",
        "output": [dict(item) for item in output],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
    }
    if usage is not None:
        response["usage"] = {
            "input_tokens": usage[0],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": usage[1],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": sum(usage),
        }
    return response
