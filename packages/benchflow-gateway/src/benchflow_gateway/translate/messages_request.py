"""Anthropic Messages requests, read and written."""

import json
from typing import Any

from benchflow_gateway.documents import (
    Document,
    DocumentError,
    as_document,
    documents,
    read_document,
    text_of,
)

from .custom import CUSTOM_PARAMETERS, wrap_custom
from .prompt import (
    Choice,
    Image,
    Part,
    Prompt,
    Result,
    Text,
    Tool,
    TurnList,
    Use,
    number,
    untranslatable,
    whole,
    words,
)

# The wire requires a limit. Every current model accepts this one.
_MAX_TOKENS = 8192
# Do not send a model's thoughts to another model.
_SKIPPED = {"thinking", "redacted_thinking"}


def read_messages(body: Document) -> Prompt:
    """Read a request. Raise `RefusedError` if no other wire can express it."""
    turns = TurnList()
    for message in documents(body.get("messages")):
        parts = _read_blocks(message.get("content"))
        turns.add("assistant" if message.get("role") == "assistant" else "user", parts)
    tools = tuple(_read_tool(tool) for tool in documents(body.get("tools")) if _is_function(tool))
    system = _read_blocks(body.get("system"))
    choice = as_document(body.get("tool_choice"))
    one_by_one = choice.get("disable_parallel_tool_use")
    return Prompt(
        model=text_of(body.get("model")),
        system="\n\n".join(part.text for part in system if isinstance(part, Text)),
        turns=turns.turns(),
        tools=tools,
        choice=_read_choice(choice, tools),
        parallel=None if one_by_one is None else not one_by_one,
        max_tokens=whole(body.get("max_tokens")),
        temperature=number(body.get("temperature")),
        top_p=number(body.get("top_p")),
        stop=words(body.get("stop_sequences")),
        stream=bool(body.get("stream")),
    )


def _is_function(tool: Document) -> bool:
    # Other upstreams do not have the tools that run on Anthropic's servers.
    return text_of(tool.get("type")) in {"", "custom"}


def _read_blocks(content: object) -> list[Part]:
    if isinstance(content, str):
        return [Text(content)] if content else []
    return [part for block in documents(content) for part in _read_block(block)]


def _read_block(block: Document) -> list[Part]:
    kind = text_of(block.get("type"))
    if kind == "text":
        return [Text(text_of(block.get("text")))]
    if kind == "image":
        return [_read_image(as_document(block.get("source")))]
    if kind == "tool_use":
        arguments = json.dumps(as_document(block.get("input")), ensure_ascii=False)
        return [Use(text_of(block.get("id")), text_of(block.get("name")), arguments)]
    if kind == "tool_result":
        inner = [p for p in _read_blocks(block.get("content")) if isinstance(p, Text | Image)]
        failed = bool(block.get("is_error"))
        return [Result(text_of(block.get("tool_use_id")), tuple(inner), failed)]
    if kind in _SKIPPED:
        return []
    raise untranslatable(f"a content block of type {kind!r}")


def _read_image(source: Document) -> Image:
    if source.get("type") == "base64":
        return Image(text_of(source.get("media_type")), text_of(source.get("data")))
    if source.get("type") == "url":
        return Image(url=text_of(source.get("url")))
    raise untranslatable(f"an image from {source.get('type')!r}")


def _read_tool(tool: Document) -> Tool:
    description = text_of(tool.get("description"))
    return Tool(text_of(tool.get("name")), description, as_document(tool.get("input_schema")))


def _read_choice(choice: Document, tools: tuple[Tool, ...]) -> Choice | Tool | None:
    if choice.get("type") == "tool":
        return next((tool for tool in tools if tool.name == choice.get("name")), None)
    known: dict[str, Choice] = {"auto": "auto", "any": "any", "none": "none"}
    return known.get(text_of(choice.get("type")))


def write_messages(prompt: Prompt) -> Document:
    """Write the same request in this wire."""
    if prompt.schema:
        raise untranslatable("a JSON schema for the answer")
    turns = [
        {"role": turn.role, "content": [_write_part(part, prompt) for part in turn.parts]}
        for turn in prompt.turns
    ]
    fields: dict[str, Any] = {
        "system": prompt.system or None,
        "tools": [_write_tool(tool) for tool in prompt.tools] or None,
        "tool_choice": _write_choice(prompt) if prompt.tools else None,
        "temperature": prompt.temperature,
        "top_p": prompt.top_p,
        "stop_sequences": list(prompt.stop) or None,
        "stream": prompt.stream or None,
    }
    present = {key: value for key, value in fields.items() if value is not None}
    max_tokens = prompt.max_tokens or _MAX_TOKENS
    return {"model": prompt.model, "max_tokens": max_tokens, "messages": turns, **present}


def _write_part(part: Part, prompt: Prompt) -> Document:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Image):
        inline = {"type": "base64", "media_type": part.media_type, "data": part.data}
        return {"type": "image", "source": {"type": "url", "url": part.url} if part.url else inline}
    if isinstance(part, Use):
        return {"type": "tool_use", "id": part.id, "name": part.name, "input": _input(part, prompt)}
    content = [_write_part(inner, prompt) for inner in part.parts]
    result: Document = {"type": "tool_result", "tool_use_id": part.id, "content": content}
    return {**result, "is_error": True} if part.failed else result


def _input(use: Use, prompt: Prompt) -> Document:
    arguments = wrap_custom(use.arguments) if use.name in prompt.custom_tools else use.arguments
    try:
        return read_document(arguments or "{}")
    except DocumentError as error:
        raise untranslatable(f"the arguments of {use.name!r} ({error})") from error


def _write_tool(tool: Tool) -> Document:
    schema = CUSTOM_PARAMETERS if tool.custom else tool.parameters or {"type": "object"}
    return {"name": tool.name, "description": tool.description, "input_schema": schema}


def _write_choice(prompt: Prompt) -> Document | None:
    choice = prompt.choice
    if isinstance(choice, Tool):
        result: Document = {"type": "tool", "name": choice.name}
    elif choice is not None or prompt.parallel is False:
        result = {"type": choice or "auto"}
    else:
        return None
    if prompt.parallel is False and choice != "none":
        result["disable_parallel_tool_use"] = True
    return result
