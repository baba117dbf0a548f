"""Steps as chat messages with real tool calls and real tool results."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

from benchflow_contracts import Ask, Step, ToolCall
from benchflow_kernel import ASK_TOOL, answer_text, ask_arguments

Message = dict[str, Any]
"""An OpenAI chat message: `role`, `content`, and `tool_calls` or `tool_call_id`."""


def steps_to_messages(steps: Iterable[Step], *, instruction: str | None = None) -> list[Message]:
    """Return the conversation of a trajectory.

    A step is one assistant message (reasoning under `reasoning_content`), followed
    by one `tool` message per observation. An Ask is a call of `ask_user`, and its
    Answer is the result of that call. If the first step has no prompt, the
    conversation begins with `instruction`. A request to fork a session is not a
    part of the conversation.
    """
    messages: list[Message] = []
    pending: Ask | None = None
    for step in steps:
        prompt = step.prompt if messages or step.prompt else instruction
        if step.answer is not None and pending is not None:
            messages.append(_tool_result(f"ask-{pending.id}", answer_text(pending, step.answer)))
        elif prompt:
            messages.append({"role": "user", "content": prompt})
        pending = None if _is_fork(step.ask) else step.ask
        messages.extend(_step_messages(step))
    if not messages and instruction:
        messages.append({"role": "user", "content": instruction})
    return messages


def _step_messages(step: Step) -> Iterable[Message]:
    calls = [_openai_call(call) for call in step.tool_calls]
    if step.ask is not None and not _is_fork(step.ask):
        calls.append(_ask_call(step.ask))
    if step.message or step.reasoning or calls:
        message: Message = {"role": "assistant", "content": step.message}
        if step.reasoning:
            message["reasoning_content"] = step.reasoning
        if calls:
            message["tool_calls"] = calls
        yield message
    for observation in step.observations:
        yield _tool_result(observation.tool_call_id, observation.content)


def _is_fork(ask: Ask | None) -> bool:
    return ask is not None and ask.kind == "fork"


def _openai_call(call: ToolCall) -> dict[str, Any]:
    arguments: object = {"title": call.title} if call.raw_input is None else call.raw_input
    if not isinstance(arguments, Mapping):
        # OpenAI's arguments are an object, and chat templates iterate over its items.
        arguments = {"input": arguments}
    return _call(call.id, call.name or call.kind, cast("Mapping[str, object]", arguments))


def _ask_call(ask: Ask) -> dict[str, Any]:
    return _call(f"ask-{ask.id}", ASK_TOOL, ask_arguments(ask))


def _call(call_id: str, name: str, arguments: Mapping[str, object]) -> dict[str, Any]:
    text = json.dumps(arguments, ensure_ascii=False, sort_keys=True)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def _tool_result(call_id: str, content: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": content}
