"""The events of Codex. Its spans describe its own runtime; prompts and tools are in log records.

Source: the page "Observability" of Codex' documentation of its `[otel]` table.
"""

from typing import Any

from benchflow_traces.facts import Fact, Failure, ModelCall, Reading, Tokens, ToolRun, UserPrompt
from benchflow_traces.messages import as_text, from_json
from benchflow_traces.spans import LogRecord

_PREFIX = "codex."


def read_log(record: LogRecord) -> Reading | None:
    """Return the facts of an event of Codex, else None."""
    if not record.event.startswith(_PREFIX):
        return None
    fact = _fact(record, record.event.removeprefix(_PREFIX))
    conversation = record.text("conversation.id", "conversation_id", "thread.id")
    extra = {} if conversation is None else {"conversation": conversation}
    return Reading("codex", () if fact is None else (fact,), extra)


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
        case _:
            return None


def _completed(record: LogRecord) -> ModelCall | None:
    """Return the model call whose stream ended, which is the event with the tokens."""
    if record.text("event.kind") not in {"response.completed", "response.failed"}:
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
