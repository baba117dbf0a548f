"""Chat Completions requests, read and written."""

from typing import Any, Literal

from benchflow_gateway.documents import Document, as_document, documents, text_of

from .custom import CUSTOM_PARAMETERS, wrap_custom
from .prompt import (
    Choice,
    Image,
    Part,
    Prompt,
    Result,
    Text,
    Tool,
    Turn,
    TurnList,
    Use,
    number,
    untranslatable,
    whole,
    words,
)


def read_chat(body: Document) -> Prompt:
    """Read a request. Raise `RefusedError` if no other wire can express it."""
    system: list[str] = []
    turns = TurnList()
    for message in documents(body.get("messages")):
        role = text_of(message.get("role"))
        content = _read_content(message.get("content"))
        if role in {"system", "developer"}:
            system += [part.text for part in content if isinstance(part, Text)]
        elif role == "assistant":
            uses = [_read_use(call) for call in documents(message.get("tool_calls"))]
            turns.add("assistant", [*content, *uses])
        elif role == "tool":
            turns.add("user", [Result(text_of(message.get("tool_call_id")), tuple(content))])
        else:
            turns.add("user", [*content])
    tools = tuple(_read_tool(tool) for tool in documents(body.get("tools")))
    options = as_document(body.get("stream_options"))
    return Prompt(
        model=text_of(body.get("model")),
        system="\n\n".join(system),
        turns=turns.turns(),
        tools=tools,
        choice=_read_choice(body.get("tool_choice"), tools),
        parallel=body.get("parallel_tool_calls"),
        max_tokens=whole(body.get("max_completion_tokens") or body.get("max_tokens")),
        temperature=number(body.get("temperature")),
        top_p=number(body.get("top_p")),
        stop=words(body.get("stop")),
        effort=body.get("reasoning_effort"),
        schema=as_document(as_document(body.get("response_format")).get("json_schema")) or None,
        stream=bool(body.get("stream")),
        usage=not body.get("stream") or bool(options.get("include_usage")),
    )


def _read_content(content: object) -> list[Text | Image]:
    if isinstance(content, str):
        return [Text(content)] if content else []
    parts: list[Text | Image] = []
    for part in documents(content):
        kind = text_of(part.get("type"))
        if kind in {"text", "refusal"}:
            parts.append(Text(text_of(part.get(kind))))
        elif kind == "image_url":
            parts.append(Image.of_url(text_of(as_document(part.get("image_url")).get("url"))))
        else:
            raise untranslatable(f"a content part of type {kind!r}")
    return parts


def _read_use(call: Document) -> Use:
    function = as_document(call.get("function"))
    name, arguments = text_of(function.get("name")), text_of(function.get("arguments"))
    return Use(text_of(call.get("id")), name, arguments)


def _read_tool(tool: Document) -> Tool:
    if tool.get("type") != "function":
        raise untranslatable(f"a tool of type {tool.get('type')!r}")
    function = as_document(tool.get("function"))
    description = text_of(function.get("description"))
    return Tool(text_of(function.get("name")), description, as_document(function.get("parameters")))


def _read_choice(choice: object, tools: tuple[Tool, ...]) -> Choice | Tool | None:
    name = text_of(as_document(as_document(choice).get("function")).get("name"))
    if name:
        return next((tool for tool in tools if tool.name == name), None)
    known: dict[object, Choice] = {"auto": "auto", "required": "any", "none": "none"}
    return known.get(choice) if isinstance(choice, str) else None


def write_chat(prompt: Prompt) -> Document:
    """Write the same request in this wire."""
    system = [{"role": "system", "content": prompt.system}] if prompt.system else []
    messages = [message for turn in prompt.turns for message in _write_turn(turn, prompt)]
    schema = {"type": "json_schema", "json_schema": prompt.schema} if prompt.schema else None
    fields: dict[str, Any] = {
        "tools": [_write_tool(tool) for tool in prompt.tools] or None,
        "tool_choice": _write_choice(prompt.choice),
        "parallel_tool_calls": prompt.parallel if prompt.tools else None,
        "max_tokens": prompt.max_tokens,
        "temperature": prompt.temperature,
        "top_p": prompt.top_p,
        "stop": list(prompt.stop) or None,
        "reasoning_effort": prompt.effort,
        "response_format": schema,
        "stream": prompt.stream or None,
    }
    present = {key: value for key, value in fields.items() if value is not None}
    return {"model": prompt.model, "messages": [*system, *messages], **present}


def _write_turn(turn: Turn, prompt: Prompt) -> list[Document]:
    if turn.role == "assistant":
        return [_write_assistant(turn, prompt)]
    messages: list[Document] = []
    parts: list[Text | Image] = []
    for part in turn.parts:
        if isinstance(part, Result):
            text = "\n".join(item.text for item in part.parts if isinstance(item, Text))
            messages.append({"role": "tool", "tool_call_id": part.id, "content": text})
            # A tool message can have only text, so its images follow in a message of the user.
            parts += [item for item in part.parts if isinstance(item, Image)]
        elif not isinstance(part, Use):
            parts.append(part)
    if parts:
        messages.append({"role": "user", "content": _write_content(parts)})
    return messages


def _write_assistant(turn: Turn, prompt: Prompt) -> Document:
    text = "".join(part.text for part in turn.parts if isinstance(part, Text))
    calls = [_write_use(part, prompt) for part in turn.parts if isinstance(part, Use)]
    message: Document = {"role": "assistant", "content": text or None}
    return {**message, "tool_calls": calls} if calls else message


def _write_content(parts: list[Text | Image]) -> str | list[Document]:
    if len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    return [_write_part(part) for part in parts]


def _write_part(part: Part) -> Document:
    if isinstance(part, Image):
        return {"type": "image_url", "image_url": {"url": part.to_url()}}
    assert isinstance(part, Text)
    return {"type": "text", "text": part.text}


def _write_use(use: Use, prompt: Prompt) -> Document:
    arguments = use.arguments
    if use.name in prompt.custom_tools:
        arguments = wrap_custom(arguments)
    kind: Literal["function"] = "function"
    return {"id": use.id, "type": kind, kind: {"name": use.name, "arguments": arguments}}


def _write_tool(tool: Tool) -> Document:
    parameters = CUSTOM_PARAMETERS if tool.custom else tool.parameters
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def _write_choice(choice: Choice | Tool | None) -> str | Document | None:
    if isinstance(choice, Tool):
        return {"type": "function", "function": {"name": choice.name}}
    return "required" if choice == "any" else choice
