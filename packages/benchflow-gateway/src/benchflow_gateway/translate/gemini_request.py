"""Read Gemini requests."""

import json
from typing import cast

from benchflow_gateway.documents import Document, as_document, documents, items_of, text_of

from .prompt import (
    Choice,
    Image,
    Part,
    Prompt,
    Result,
    Speaker,
    Text,
    Tool,
    TurnList,
    Use,
    number,
    untranslatable,
    whole,
    words,
)

_CHOICES: dict[str, Choice] = {"AUTO": "auto", "VALIDATED": "auto", "ANY": "any", "NONE": "none"}
# Gemini's dialect of JSON Schema has OBJECT instead of object.
_TYPES = {"OBJECT", "ARRAY", "STRING", "NUMBER", "INTEGER", "BOOLEAN", "NULL"}


def read_gemini(body: Document) -> Prompt:
    """Read a request. Raise `RefusedError` if no other wire can express it."""
    config = as_document(body.get("generationConfig"))
    if (whole(config.get("candidateCount")) or 1) > 1:
        raise untranslatable("more than one candidate")
    if body.get("cachedContent"):
        raise untranslatable("content that is stored on Google's servers")
    tools = tuple(tool for entry in documents(body.get("tools")) for tool in _read_tools(entry))
    reader = _Contents()
    for content in documents(body.get("contents")):
        reader.read(content)
    return Prompt(
        model=text_of(body.get("model")),
        system=_read_system(body.get("systemInstruction")),
        turns=reader.turns.turns(),
        tools=tools,
        choice=_read_choice(as_document(body.get("toolConfig")), tools),
        max_tokens=whole(config.get("maxOutputTokens")),
        temperature=number(config.get("temperature")),
        top_p=number(config.get("topP")),
        stop=words(config.get("stopSequences")),
        schema=_read_schema(config),
        stream=bool(body.get("stream")),
    )


def _read_system(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = documents(as_document(content).get("parts"))
    return "\n\n".join(filter(None, (text_of(part.get("text")) for part in parts)))


class _Contents:
    """Reads contents in order. A result without an id answers the first open call of its name."""

    def __init__(self) -> None:
        self.turns = TurnList()
        self._calls = 0
        self._waiting: dict[str, list[str]] = {}
        """The ids of the calls without a result, by the name of the function."""

    def read(self, content: Document) -> None:
        """Read the messages of one side. Results of functions come from the user's side."""
        role: Speaker = "assistant" if content.get("role") == "model" else "user"
        parts = [new for part in documents(content.get("parts")) for new in self._part(part)]
        if parts:
            self.turns.add(role, parts)

    def _part(self, part: Document) -> list[Part]:
        if part.get("thought"):
            # Do not send a model's thoughts to another model.
            return []
        if "functionCall" in part:
            return [self._call(as_document(part["functionCall"]))]
        if "functionResponse" in part:
            return [self._result(as_document(part["functionResponse"]))]
        if "text" in part:
            return [Text(text_of(part["text"]))] if part["text"] else []
        if "inlineData" in part:
            return [_read_image(as_document(part["inlineData"]))]
        if part.keys() <= {"thoughtSignature"}:
            return []
        raise untranslatable(f"a part with {', '.join(sorted(part))!r}")

    def _call(self, call: Document) -> Use:
        self._calls += 1
        name = text_of(call.get("name"))
        call_id = text_of(call.get("id")) or f"call_{self._calls}"
        self._waiting.setdefault(name, []).append(call_id)
        arguments = json.dumps(as_document(call.get("args")), ensure_ascii=False)
        return Use(call_id, name, arguments)

    def _result(self, result: Document) -> Result:
        name = text_of(result.get("name"))
        waiting = self._waiting.get(name) or [""]
        given_id = text_of(result.get("id"))
        call_id = given_id if given_id in waiting or not waiting[0] else waiting[0]
        if call_id in waiting:
            waiting.remove(call_id)
        pictures = (as_document(part.get("inlineData")) for part in documents(result.get("parts")))
        text, failed = _read_response(as_document(result.get("response")))
        return Result(call_id, (Text(text), *(_read_image(p) for p in pictures if p)), failed)


def _read_response(response: Document) -> tuple[str, bool]:
    for key in ("output", "error"):
        if response.keys() == {key} and isinstance(response[key], str):
            return text_of(response[key]), key == "error"
    return json.dumps(response, ensure_ascii=False), False


def _read_image(data: Document) -> Image:
    kind = text_of(data.get("mimeType"))
    if not kind.startswith("image/"):
        raise untranslatable(f"data of type {kind!r}")
    return Image(kind, text_of(data.get("data")))


def _read_tools(tool: Document) -> list[Tool]:
    # A tool without declarations runs on Google's servers. Other upstreams do not have it.
    return [
        Tool(
            text_of(declared.get("name")),
            text_of(declared.get("description")),
            as_document(declared.get("parametersJsonSchema"))
            or _plain_schema(as_document(declared.get("parameters"))),
        )
        for declared in documents(tool.get("functionDeclarations"))
    ]


def _plain_schema(schema: Document) -> Document:
    """Return the JSON schema for a schema in Gemini's dialect."""
    return {key: _plain(key, value) for key, value in schema.items()}


def _plain(key: str, value: object) -> object:
    if key == "type" and isinstance(value, str) and value in _TYPES:
        return value.lower()
    if isinstance(value, dict):
        return _plain_schema(cast("Document", value))
    if isinstance(value, list):
        items = items_of(cast("object", value))
        return items if key == "enum" else [_plain("", item) for item in items]
    return value


def _read_choice(config: Document, tools: tuple[Tool, ...]) -> Choice | Tool | None:
    calling = as_document(config.get("functionCallingConfig"))
    allowed = words(calling.get("allowedFunctionNames"))
    if calling.get("mode") == "ANY" and len(allowed) == 1:
        return next((tool for tool in tools if tool.name == allowed[0]), None)
    return _CHOICES.get(text_of(calling.get("mode")))


def _read_schema(config: Document) -> Document | None:
    if config.get("responseMimeType") != "application/json":
        return None
    schema = as_document(config.get("responseJsonSchema")) or _plain_schema(
        as_document(config.get("responseSchema"))
    )
    return {"name": "answer", "schema": schema or {"type": "object"}}
