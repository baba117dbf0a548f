"""Read OpenAI Responses requests."""

from benchflow_gateway.documents import Document, as_document, documents, text_of

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
    name_in,
    number,
    untranslatable,
    whole,
)

# Other upstreams do not have the tools that run on OpenAI's servers.
_HOSTED = {
    "web_search",
    "web_search_preview",
    "file_search",
    "code_interpreter",
    "image_generation",
    "computer_use_preview",
    "mcp",
    "tool_search",
}


def read_responses(body: Document) -> Prompt:
    """Read a request. Raise `RefusedError` if no other wire can express it."""
    if body.get("previous_response_id") or body.get("conversation"):
        raise untranslatable("a conversation that is stored on OpenAI's servers")
    system = [text_of(body.get("instructions"))]
    turns = TurnList()
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else documents(given)
    for item in items:
        _read_item(item, turns, system)
    tools = tuple(tool for entry in documents(body.get("tools")) for tool in _read_tools(entry))
    return Prompt(
        model=text_of(body.get("model")),
        system="\n\n".join(filter(None, system)),
        turns=turns.turns(),
        tools=tools,
        choice=_read_choice(body.get("tool_choice"), tools),
        parallel=body.get("parallel_tool_calls"),
        max_tokens=whole(body.get("max_output_tokens")),
        temperature=number(body.get("temperature")),
        top_p=number(body.get("top_p")),
        effort=as_document(body.get("reasoning")).get("effort"),
        schema=_read_schema(as_document(as_document(body.get("text")).get("format"))),
        stream=bool(body.get("stream")),
    )


def _read_item(item: Document, turns: TurnList, system: list[str]) -> None:
    kind = text_of(item.get("type", "message"))
    call = text_of(item.get("call_id"))
    if kind == "message":
        parts = _read_content(item.get("content"))
        role = text_of(item.get("role"))
        if role in {"system", "developer"}:
            system += [part.text for part in parts if isinstance(part, Text)]
        else:
            turns.add("assistant" if role == "assistant" else "user", [*parts])
    elif kind in {"function_call", "custom_tool_call"}:
        arguments = text_of(item.get("arguments" if kind == "function_call" else "input"))
        name = name_in(text_of(item.get("namespace")), text_of(item.get("name")))
        turns.add("assistant", [Use(call, name, arguments)])
    elif kind in {"function_call_output", "custom_tool_call_output"}:
        result: Part = Result(call, tuple(_read_content(item.get("output"))))
        turns.add("user", [result])
    elif kind != "reasoning":
        raise untranslatable(f"an input item of type {kind!r}")


def _read_content(content: object) -> list[Text | Image]:
    if isinstance(content, str):
        return [Text(content)] if content else []
    parts: list[Text | Image] = []
    for part in documents(content):
        kind = text_of(part.get("type"))
        if kind in {"input_text", "output_text", "text", "refusal"}:
            parts.append(Text(text_of(part.get("refusal" if kind == "refusal" else "text"))))
        elif kind == "input_image" and part.get("image_url"):
            parts.append(Image.of_url(text_of(part.get("image_url"))))
        else:
            raise untranslatable(f"a content part of type {kind!r}")
    return parts


def _read_tools(tool: Document, namespace: str = "") -> list[Tool]:
    kind, name = text_of(tool.get("type")), text_of(tool.get("name"))
    if kind in _HOSTED:
        return []
    if kind == "namespace" and not namespace:
        return [t for inner in documents(tool.get("tools")) for t in _read_tools(inner, name)]
    if kind not in {"function", "custom"}:
        raise untranslatable(f"a tool of type {kind!r}")
    description, parameters = text_of(tool.get("description")), as_document(tool.get("parameters"))
    return [Tool(name_in(namespace, name), description, parameters, kind == "custom", namespace)]


def _read_choice(choice: object, tools: tuple[Tool, ...]) -> Choice | Tool | None:
    if name := text_of(as_document(choice).get("name")):
        return next((tool for tool in tools if tool.name == name), None)
    known: dict[object, Choice] = {"auto": "auto", "required": "any", "none": "none"}
    return known.get(choice) if isinstance(choice, str) else None


def _read_schema(format_: Document) -> Document | None:
    if format_.get("type") != "json_schema":
        return None
    return {key: format_[key] for key in ("name", "schema", "strict") if key in format_}
