"""The events of Codex. Its spans describe its own runtime; prompts and tools are in log records.

Source: the page "Observability" of Codex' documentation of its `[otel]` table, and a recorded run
of Codex 0.171.0: its log records have `event.name` as an attribute, and about 700 spans.
"""

from typing import Any

from benchflow_traces.facts import (
    Fact,
    Failure,
    ModelCall,
    PermissionWait,
    Reading,
    Tokens,
    ToolRun,
    UserPrompt,
)
from benchflow_traces.messages import as_text, from_json
from benchflow_traces.spans import LogRecord, Span

_PREFIX = "codex."
_SCOPES = ("codex_", "codex-")
"""The programs of Codex, such as `codex_exec`, name their tracers after themselves."""


def read_span(span: Span) -> Reading | None:
    """Return the conversation of a span of Codex, else None. Its facts are in log records."""
    if not span.scope.startswith(_SCOPES):
        return None
    return Reading("codex", (), _conversation(span), is_internal=True)


def _conversation(source: Span | LogRecord) -> dict[str, str]:
    # `thread.id` is the conversation on some spans, and the number of a thread on the others.
    name = source.text("conversation.id", "conversation_id", "thread_id")
    return {} if name is None else {"conversation": name}


def read_log(record: LogRecord) -> Reading | None:
    """Return the facts of an event of Codex, else None."""
    if not record.event.startswith(_PREFIX):
        return None
    fact = _fact(record, record.event.removeprefix(_PREFIX))
    return Reading("codex", () if fact is None else (fact,), _conversation(record))


def _fact(record: LogRecord, name: str) -> Fact | None:
    match name:
        case "user_prompt":
            prompt = record.text("prompt")
            return UserPrompt(prompt) if prompt and prompt != "[REDACTED]" else None
        case "sse_event":
            return _completed(record)
        case "api_request":
            failure = _failure(record)
            return None if failure is None else ModelCall(record.text("model"), failure=failure)
        case "tool_result":
            return _tool_run(record)
        case "tool_decision":
            return _permission(record)
        case _:
            return None


def _completed(record: LogRecord) -> ModelCall | None:
    """Return the model call whose stream ended.

    Codex reports the end of a stream twice, and counts tokens in one of the two events. A model
    server that does not report tokens has no such event, so that its calls are not seen.
    """
    kind = record.text("event.kind")
    is_counted = record.count("input_token_count", "output_token_count") is not None
    if not (kind == "response.failed" or (kind == "response.completed" and is_counted)):
        return None
    tokens = Tokens(
        input=record.count("input_token_count"),
        output=record.count("output_token_count"),
        cached=record.count("cached_token_count"),
    )
    return ModelCall(record.text("model"), tokens=tokens, failure=_failure(record))


def _failure(record: LogRecord) -> Failure | None:
    message = record.text("error.message")
    if message is None:
        return None
    return Failure(str(record.attributes.get("http.response.status_code", "Error")), message)


def _permission(record: LogRecord) -> PermissionWait | None:
    """Return the question to a person, or None if the configuration decided."""
    if not (record.text("source") or "").lower().startswith("user"):
        return None
    text = f"permission for {record.text('tool_name') or 'a tool'}"
    return PermissionWait(text, answer=record.text("decision"))


def _tool_run(record: LogRecord) -> ToolRun:
    output: Any = record.attributes.get("output")
    failed = str(record.attributes.get("success", "true")).lower() == "false"
    return ToolRun(
        id=record.text("call_id") or "",
        name=record.text("tool_name") or "tool",
        arguments=from_json(record.attributes.get("arguments")),
        result=None if output is None else as_text(output),
        failure=Failure("Error", "") if failed else None,
    )
