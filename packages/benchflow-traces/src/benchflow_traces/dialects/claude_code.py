"""Claude Code's own spans and events.

Source: the page "Monitoring" of Claude Code's documentation, and recorded runs of 2.1.197. Its
names have no `gen_ai.` prefix, and `input_tokens` leaves out the tokens that came from a cache.
Spans have the results of tools; only log records have the model's text and a tool's whole input.
"""

from typing import Final

from benchflow_traces.facts import (
    AgentRun,
    Fact,
    Failure,
    Message,
    ModelCall,
    ModelText,
    PermissionWait,
    Reading,
    Tokens,
    ToolRun,
    UserPrompt,
)
from benchflow_traces.messages import as_text, from_json
from benchflow_traces.spans import Attribute, LogRecord, Span

from ._failures import failure_of

_PREFIX = "claude_code."
_INPUTS: Final = {"full_command": "command", "file_path": "file_path"}
"""Attributes of a tool's span that are a part of its input, and their names in the input."""


def read_span(span: Span) -> Reading | None:
    """Return the facts of a span of Claude Code, else None."""
    if not span.name.startswith(_PREFIX):
        return None
    fact = _fact(span, span.name.removeprefix(_PREFIX))
    return Reading("claude_code", () if fact is None else (fact,), _session(span))


def _fact(span: Span, name: str) -> Fact | None:
    match name:
        case "interaction":
            prompt = _visible(span.text("user_prompt", "prompt"))
            return AgentRun("claude-code", prompt=prompt, failure=failure_of(span))
        case "llm_request":
            return _model_call(span)
        case "tool" | "tool.execution":
            # Of a tool that fails, only the execution inside has the error.
            return _tool_run(span)
        case "tool.blocked_on_user":
            return _permission(span)
        case _:
            return None


def _model_call(span: Span) -> ModelCall:
    answer = _visible(span.text("response_text", "output"))
    return ModelCall(
        model=span.text("model"),
        output=None if answer is None else Message("assistant", text=answer),
        finish=span.text("stop_reason"),
        tokens=_tokens(span),
        failure=failure_of(span) or _refused(span),
    )


def _tokens(source: Span | LogRecord) -> Tokens:
    fresh = source.count("input_tokens")
    cached = source.count("cache_read_tokens")
    created = source.count("cache_creation_tokens")
    whole = None if fresh is None else fresh + (cached or 0) + (created or 0)
    return Tokens(input=whole, output=source.count("output_tokens"), cached=cached)


def _tool_run(span: Span) -> ToolRun:
    arguments = span.attributes.get("tool_input", span.attributes.get("tool_parameters"))
    if arguments is None:
        known = {n: span.attributes[key] for key, n in _INPUTS.items() if key in span.attributes}
        arguments = known or None
    result = span.attributes.get("tool_output", span.attributes.get("tool_result"))
    if result is None:
        result = _output(span)
    return ToolRun(
        id=span.text("tool_use_id", "gen_ai.tool.call.id") or "",
        name=span.text("tool_name") or "tool",
        arguments=from_json(arguments),
        result=None if result is None else as_text(result),
        failure=failure_of(span) or _refused(span),
    )


def _output(span: Span) -> Attribute:
    """Return what a tool printed, or the content of its file."""
    for event in span.events:
        if event.name == "tool.output":
            return event.attributes.get("output", event.attributes.get("content"))
    return None


def _permission(source: Span | LogRecord) -> PermissionWait | None:
    """Return the question to a person, or None if a rule or a mode decided."""
    decider = source.text("source")
    if decider is not None and not decider.startswith("user"):
        return None
    text = f"permission for {source.text('tool_name') or 'a tool'}"
    return PermissionWait(text, answer=source.text("decision"))


def _refused(source: Span | LogRecord) -> Failure | None:
    if str(source.attributes.get("success", "true")).lower() != "false":
        return None
    kind = source.text("error_type") or "Error"
    return Failure(kind[:200], source.text("error", "error_message") or "")


def _session(source: Span | LogRecord) -> dict[str, str]:
    session = source.text("session.id")
    return {} if session is None else {"conversation": session}


def _visible(text: str | None) -> str | None:
    """Return None for the text that stands for redacted content."""
    return None if text is None or text in {"<REDACTED>", "[REDACTED]"} else text


def read_log(record: LogRecord) -> Reading | None:
    """Return the facts of an event of Claude Code, else None."""
    name = record.event.removeprefix(_PREFIX)
    if not (record.event.startswith(_PREFIX) or "claude_code" in record.scope.replace("-", "_")):
        return None
    fact = _log_fact(record, name)
    return Reading("claude_code", () if fact is None else (fact,), _session(record))


def _log_fact(record: LogRecord, name: str) -> Fact | None:
    match name:
        case "user_prompt":
            prompt = _visible(record.text("prompt"))
            return UserPrompt(prompt) if prompt else None
        case "api_request":
            return ModelCall(model=record.text("model"), tokens=_tokens(record))
        case "api_error":
            kind = str(record.attributes.get("status_code", "Error"))
            failure = Failure(kind, record.text("error") or "")
            return ModelCall(model=record.text("model"), failure=failure)
        case "assistant_response":
            text = _visible(record.text("response"))
            return ModelText(text) if text else None
        case "tool_result":
            arguments = record.attributes.get("tool_input")
            if arguments is None:
                arguments = record.attributes.get("tool_parameters")
            return ToolRun(
                id=record.text("tool_use_id") or "",
                name=record.text("tool_name") or "tool",
                arguments=from_json(arguments),
                failure=_refused(record),
            )
        case "tool_decision":
            return _permission(record)
        case _:
            return None
