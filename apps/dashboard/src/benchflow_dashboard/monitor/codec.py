"""Spans and log records as rows of the database, without secrets."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, cast

from benchflow_traces import LogRecord, Span, SpanEvent
from benchflow_traces.messages import read_json
from pydantic_core import to_json

from .credentials import mask_credentials

MAX_ROW: Final = 2 * 2**20
"""Characters of one row. Longer texts in it are cut."""
_CONVERSATION: Final = (
    "benchflow.rollout",
    "gen_ai.conversation.id",
    "session.id",
    "conversation.id",
    "conversation_id",
    "thread.id",
)

Redaction = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class SpanRow:
    """One span or log record, ready to be stored."""

    trace: str
    id: str
    conversation: str | None
    start_ns: int
    end_ns: int
    is_root: bool
    body: str


def span_rows(spans: Iterable[Span], redact: Redaction = mask_credentials) -> list[SpanRow]:
    """Return the rows of spans."""
    return [
        SpanRow(
            trace=span.trace_id,
            id=span.span_id,
            conversation=_conversation(span.attributes),
            # A database has no number above 2**63.
            start_ns=min(span.start_ns, 2**63 - 1),
            end_ns=min(span.end_ns, 2**63 - 1),
            is_root=span.parent_id is None,
            body=_body(_span_fields(span), redact),
        )
        for span in spans
    ]


def log_rows(records: Iterable[LogRecord], redact: Redaction = mask_credentials) -> list[SpanRow]:
    """Return the rows of log records. Equal records have equal ids."""
    rows: list[SpanRow] = []
    for record in records:
        body = _body(_record_fields(record), redact)
        conversation = _conversation(record.attributes)
        digest = hashlib.sha256(body.encode()).hexdigest()
        rows.append(
            SpanRow(
                trace=record.trace_id or f"log:{conversation or record.scope}"[:200],
                id=f"log:{digest[:32]}",
                conversation=conversation,
                start_ns=min(record.time_ns, 2**63 - 1),
                end_ns=min(record.time_ns, 2**63 - 1),
                is_root=False,
                body=body,
            )
        )
    return rows


def parse_rows(bodies: Iterable[tuple[str, str]]) -> tuple[list[Span], list[LogRecord]]:
    """Return the spans and the log records of rows: the id and the body of each."""
    spans: list[Span] = []
    records: list[LogRecord] = []
    for identifier, body in bodies:
        known = cast("dict[str, Any]", read_json(body))
        if identifier.startswith("log:"):
            records.append(LogRecord(**known))
        else:
            known["events"] = tuple([SpanEvent(**event) for event in known["events"]])
            spans.append(Span(**known))
    return spans, records


def _conversation(attributes: Mapping[str, object]) -> str | None:
    for key in _CONVERSATION:
        value = attributes.get(key)
        if isinstance(value, str) and value:
            return mask_credentials(value)[:200]
    return None


_RECORD: Final = tuple(field.name for field in fields(LogRecord))


def _record_fields(record: LogRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in _RECORD}


def _span_fields(span: Span) -> dict[str, Any]:
    # By hand: `asdict` copies each attribute, and takes most of the time of a span.
    return {
        "trace_id": span.trace_id,
        "span_id": span.span_id,
        "parent_id": span.parent_id,
        "name": span.name,
        "start_ns": span.start_ns,
        "end_ns": span.end_ns,
        "failed": span.failed,
        "message": span.message,
        "attributes": span.attributes,
        "events": [
            {"name": event.name, "time_ns": event.time_ns, "attributes": event.attributes}
            for event in span.events
        ],
        "resource": span.resource,
        "scope": span.scope,
    }


def _body(item: Mapping[str, Any], redact: Redaction) -> str:
    text = _encode(item)
    if len(text) > MAX_ROW:
        text = _encode(_cut(item, MAX_ROW // 8))
    return redact(text)


def _encode(item: object) -> str:
    """Return an item as JSON in ASCII: Postgres refuses NUL, and UTF-8 has no lone surrogates."""
    try:
        data = to_json(item, bytes_mode="hex", inf_nan_mode="constants")
    except ValueError:
        # A lone surrogate, or a value that is nested too deep.
        return _ENCODER.encode(item)
    return data.decode() if data.isascii() else _ENCODER.encode(item)


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


_ENCODER: Final = json.JSONEncoder(default=_plain, separators=(",", ":"))


def _cut(value: object, limit: int) -> object:
    if isinstance(value, str | bytes):
        return value[:limit]
    if isinstance(value, Mapping):
        items = list(cast("Mapping[str, object]", value).items())[:200]
        return {key[:200]: _cut(item, limit // 4) for key, item in items}
    if isinstance(value, list | tuple):
        return [_cut(item, limit // 4) for item in cast("list[object]", value)[:100]]
    return value
