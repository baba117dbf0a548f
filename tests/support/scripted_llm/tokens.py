"""Token ids as vLLM returns them on `return_token_ids`; here, a token is a byte."""

import json
from typing import Any


def prompt_ids(messages: list[dict[str, Any]]) -> list[int]:
    """Return the prompt's ids: every message rendered, and the start of the next one."""
    whole = b"".join(_start(message["role"]) + _rest(message) for message in messages)
    return list(whole + _start("assistant"))


def completion_ids(message: dict[str, Any]) -> list[int]:
    """Return the ids of a sampled message, up to and with its end."""
    return list(_rest(message))


def _start(role: str) -> bytes:
    return f"<|{role}|>".encode()


def _rest(message: dict[str, Any]) -> bytes:
    calls = json.dumps(message["tool_calls"]) if message.get("tool_calls") else ""
    thought = message.get("reasoning_content", "")
    return f"{thought}{message.get('content') or ''}{calls}<|end|>".encode()
