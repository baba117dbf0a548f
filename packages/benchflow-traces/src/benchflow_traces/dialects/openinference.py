"""OpenInference: `openinference.span.kind`, and flattened `llm.*` attributes.

Source: https://github.com/Arize-ai/openinference/blob/main/spec/semantic_conventions.md
"""

import re
from collections.abc import Mapping
from typing import Any

from benchflow_traces.facts import (
    AgentRun,
    Fact,
    MemoryUse,
    Message,
    ModelCall,
    Reading,
    Tokens,
    ToolRun,
)
from benchflow_traces.messages import as_text, from_json, message_of
from benchflow_traces.spans import Attributes, Span

from ._failures import failure_of

_MESSAGE = re.compile(r"llm\.(input|output)_messages\.(\d{1,4})\.message\.(.{1,300})")
_CALL = re.compile(r"tool_calls\.(\d{1,4})\.tool_call\.(id|function\.name|function\.arguments)")
_PART = re.compile(r"contents\.(\d{1,4})\.message_content\.(type|text|thinking|reasoning)")


def read_span(span: Span) -> Reading | None:
    """Return the facts of a span with `openinference.span.kind`, else None."""
    kind = span.attributes.get("openinference.span.kind")
    if not isinstance(kind, str):
        return None
    fact = _fact(span, kind.upper())
    session = span.text("session.id")
    extra = {} if session is None else {"conversation": session}
    # The kinds EMBEDDING, RERANKER, GUARDRAIL and PROMPT are known, and have no place in a step.
    return Reading("openinference", () if fact is None else (fact,), extra)


def _fact(span: Span, kind: str) -> Fact | None:
    match kind:
        case "LLM":
            return _model_call(span)
        case "TOOL":
            return _tool_run(span)
        case "AGENT":
            name = span.text("agent.name", "graph.node.id") or span.name
            return AgentRun(name, prompt=span.text("input.value"), failure=failure_of(span))
        case "RETRIEVER":
            content = span.attributes.get("output.value")
            text = None if content is None else as_text(content)
            return MemoryUse("search_memory", content=text, failure=failure_of(span))
        case _:
            return None


def _model_call(span: Span) -> ModelCall:
    asked, answers = (_messages(span.attributes, side) for side in ("input", "output"))
    return ModelCall(
        model=span.text("llm.model_name"),
        input=asked,
        output=answers[0] if answers else None,
        finish=span.text("llm.finish_reason"),
        tokens=Tokens(
            input=span.count("llm.token_count.prompt"),
            output=span.count("llm.token_count.completion"),
            cached=span.count("llm.token_count.prompt_details.cache_read"),
        ),
        failure=failure_of(span),
    )


def _tool_run(span: Span) -> ToolRun:
    result = span.attributes.get("output.value")
    arguments = span.attributes.get("tool.parameters", span.attributes.get("input.value"))
    return ToolRun(
        id=span.text("tool_call.id", "tool.id") or "",
        name=span.text("tool.name") or span.name,
        arguments=from_json(arguments),
        result=None if result is None else as_text(result),
        failure=failure_of(span),
    )


def _messages(attributes: Attributes, side: str) -> tuple[Message, ...]:
    rows: dict[int, dict[str, Any]] = {}
    for key, value in attributes.items():
        match = _MESSAGE.fullmatch(key)
        if match and match[1] == side:
            rows.setdefault(int(match[2]), {})[match[3]] = value
    return tuple(_message(row) for _, row in sorted(rows.items()))


def _message(row: Mapping[str, Any]) -> Message:
    calls: dict[int, dict[str, Any]] = {}
    parts: dict[int, dict[str, Any]] = {}
    for key, value in row.items():
        if match := _CALL.fullmatch(key):
            calls.setdefault(int(match[1]), {})[match[2].rpartition(".")[2]] = value
        elif match := _PART.fullmatch(key):
            parts.setdefault(int(match[1]), {})[match[2]] = value
    fields: dict[str, Any] = {
        name: row[name] for name in ("role", "content", "tool_call_id") if name in row
    }
    if parts and "content" not in fields:
        fields["content"] = [part for _, part in sorted(parts.items())]
    fields["tool_calls"] = [call for _, call in sorted(calls.items())]
    return message_of(fields)
