"""Claude Code's own spans and events.

Source: the page "Monitoring" of Claude Code's documentation. Its names have no `gen_ai.` prefix,
and `input_tokens` leaves out the tokens that came from a cache.
"""

from benchflow_traces.facts import (
    AgentRun,
    Fact,
    Failure,
    Message,
    ModelCall,
    PermissionWait,
    Reading,
    Tokens,
    ToolRun,
    UserPrompt,
)
from benchflow_traces.messages import as_text, from_json
from benchflow_traces.spans import LogRecord, Span

from ._failures import failure_of

_PREFIX = "claude_code."


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
        case "tool":
            return _tool_run(span)
        case "tool.blocked_on_user":
            return PermissionWait(
                text=f"permission for {span.text('tool_name') or 'a tool'}",
                answer=span.text("decision"),
            )
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
    result = span.attributes.get("tool_output", span.attributes.get("tool_result"))
    return ToolRun(
        id=span.text("tool_use_id") or "",
        name=span.text("tool_name") or "tool",
        arguments=from_json(arguments),
        result=None if result is None else as_text(result),
        failure=failure_of(span) or _refused(span),
    )


def _refused(source: Span | LogRecord) -> Failure | None:
    if str(source.attributes.get("success", "true")).lower() != "false":
        return None
    return Failure("Error", source.text("error", "error_message") or "")


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
        case "tool_result":
            return ToolRun(
                id=record.text("tool_use_id") or "",
                name=record.text("tool_name") or "tool",
                arguments=from_json(record.attributes.get("tool_parameters")),
                failure=_refused(record),
            )
        case "tool_decision":
            text = f"permission for {record.text('tool_name') or 'a tool'}"
            return PermissionWait(text, answer=record.text("decision"))
        case _:
            return None
