"""Spans and log records as rows of the database, without secrets."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, cast

from benchflow_contracts.redaction import MASK
from benchflow_traces import LogRecord, Span, SpanEvent

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

SECRET_PATTERNS: Final = re.compile(
    r"sk-[A-Za-z0-9_-]{16,}"
    r"|(?:gh[pousr]|github_pat|glpat|xox[abprs]|npm|hf|pypi)[_-][A-Za-z0-9_-]{16,}"
    r"|A(?:KIA|SIA)[0-9A-Z]{16}"
    r"|AIza[0-9A-Za-z_-]{30,}"
    r"|eyJ(?:(?!eyJ)[A-Za-z0-9_-])*+\.[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}+"
    r"|(?<=[Bb]earer )[A-Za-z0-9._~+/=-]{16,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[A-Za-z0-9+/=\\\s]|-(?!----BEGIN ))*?"
    r"-----END [A-Z ]*PRIVATE KEY-----"
)
"""Credentials by their shape: of model providers, code hosts, clouds, JSON web tokens and keys.

Texts of agents are searched, so the time must grow with the length only: a search for the rest of a
token or of a key ends where the next one could begin.
"""

Redaction = Callable[[str], str]


def redact_patterns(text: str) -> str:
    """Return `text` with `MASK` in place of credentials."""
    return SECRET_PATTERNS.sub(MASK, text)


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


def span_rows(spans: Iterable[Span], redact: Redaction = redact_patterns) -> list[SpanRow]:
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
            body=_body(_plain_fields(span) | {"events": _events(span)}, redact),
        )
        for span in spans
    ]


def log_rows(records: Iterable[LogRecord], redact: Redaction = redact_patterns) -> list[SpanRow]:
    """Return the rows of log records. Equal records have equal ids."""
    rows: list[SpanRow] = []
    for record in records:
        body = _body(_plain_fields(record), redact)
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
        known = cast("dict[str, Any]", json.loads(body))
        if identifier.startswith("log:"):
            records.append(LogRecord(**known))
        else:
            known["events"] = tuple(SpanEvent(**event) for event in known["events"])
            spans.append(Span(**known))
    return spans, records


def _conversation(attributes: Mapping[str, object]) -> str | None:
    for key in _CONVERSATION:
        value = attributes.get(key)
        if isinstance(value, str) and value:
            return redact_patterns(value)[:200]
    return None


_NAMES: Final = {kind: tuple(f.name for f in fields(kind)) for kind in (Span, SpanEvent, LogRecord)}


def _plain_fields(item: Span | SpanEvent | LogRecord) -> dict[str, Any]:
    # `asdict` copies each attribute, and takes most of the time of a span.
    return {name: getattr(item, name) for name in _NAMES[type(item)]}


def _events(span: Span) -> list[dict[str, Any]]:
    return [_plain_fields(event) for event in span.events]


def _body(item: Mapping[str, Any], redact: Redaction) -> str:
    # ensure_ascii: Postgres refuses NUL, and UTF-8 has no lone surrogates.
    text = json.dumps(item, default=_plain, separators=(",", ":"))
    if len(text) > MAX_ROW:
        text = json.dumps(_cut(item, MAX_ROW // 8), default=_plain, separators=(",", ":"))
    return redact(text)


def _plain(value: object) -> str:
    return value.hex()[:2000] if isinstance(value, bytes) else str(value)


def _cut(value: object, limit: int) -> object:
    if isinstance(value, str):
        return value[:limit]
    if isinstance(value, Mapping):
        items = list(cast("Mapping[str, object]", value).items())[:200]
        return {key[:200]: _cut(item, limit // 4) for key, item in items}
    if isinstance(value, list | tuple):
        return [_cut(item, limit // 4) for item in cast("list[object]", value)[:100]]
    return value
