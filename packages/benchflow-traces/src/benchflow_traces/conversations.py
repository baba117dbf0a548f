"""Group spans and log records by conversation."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from .dialects.registry import read_log, read_span
from .facts import Reading
from .messages import as_text
from .spans import LogRecord, Span, SpanEvent

MAX_LEVELS = 100
"""Parents of a span that are looked at. A program could send a chain of all its spans."""


class Item(NamedTuple):
    """One span or log record, and what its dialect read."""

    id: str
    """Unique in the conversation."""
    trace: str
    parent: str | None
    start_ns: int
    end_ns: int
    reading: Reading | None
    """None if no dialect knows the span."""
    name: str
    resource: Mapping[str, object]
    is_log: bool = False
    sequence: int = 0
    """The order of log records of the same time, if the program counts them."""


def conversations(
    spans: Iterable[Span], logs: Iterable[LogRecord] = ()
) -> Mapping[str, tuple[Item, ...]]:
    """Return the items of each conversation, sorted, by the key of the conversation.

    The key is the id that the program names, else the id of the trace. A trace belongs to one
    conversation: the one that its earliest span names. The result does not depend on the order
    of `spans` and `logs`, and a span that comes twice counts once.
    """
    items = _items(spans, logs)
    keys = _keys(items)
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(keys[item.trace], []).append(item)
    return {key: _sorted(groups[key]) for key in sorted(groups) if not _is_internal(groups[key])}


def _is_internal(items: Iterable[Item]) -> bool:
    """Return whether all items describe the runtime of an agent, in no conversation."""
    return all(
        item.reading is not None
        and item.reading.is_internal
        and "conversation" not in item.reading.extra
        for item in items
    )


def _items(spans: Iterable[Span], logs: Iterable[LogRecord]) -> list[Item]:
    known: dict[tuple[str, str], Span] = {}
    for span in spans:
        key = (span.trace_id, span.span_id)
        # A program may send a span twice, with other bytes: choose whatever the order.
        other = known.setdefault(key, span)
        if other is not span:
            known[key] = max(other, span, key=lambda one: (one.end_ns, repr(one)))
    content: dict[tuple[str, str], list[SpanEvent]] = {}
    records: set[str] = set()
    items: list[Item] = []
    for record in sorted(logs, key=repr):
        if (name := repr(record)) in records:
            continue
        records.add(name)
        if record.trace_id and record.span_id and record.event.startswith("gen_ai."):
            place = content.setdefault((record.trace_id, record.span_id), [])
            place.append(_as_span_event(record))
        elif (reading := read_log(record)) is not None:
            items.append(_log_item(record, reading, len(records)))
    for key, span in known.items():
        whole = replace(span, events=(*span.events, *content[key])) if key in content else span
        items.append(_span_item(whole))
    return items


def _as_span_event(record: LogRecord) -> SpanEvent:
    attributes = dict(record.attributes)
    if record.body is not None:
        attributes["body"] = as_text(record.body)
    return SpanEvent(record.event, record.time_ns, attributes)


def _span_item(span: Span) -> Item:
    return Item(
        id=span.span_id,
        trace=span.trace_id,
        parent=span.parent_id,
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        reading=read_span(span),
        name=span.name,
        resource=span.resource,
    )


def _log_item(record: LogRecord, reading: Reading, number: int) -> Item:
    # A record without a trace belongs to its conversation alone.
    trace = record.trace_id or f"log:{reading.extra.get('conversation', record.scope)}"
    return Item(
        id=f"log-{number}",
        trace=trace,
        parent=record.span_id,
        start_ns=record.time_ns,
        end_ns=record.time_ns,
        reading=reading,
        name=record.event,
        resource=record.resource,
        is_log=True,
        sequence=record.count("event.sequence") or 0,
    )


def _keys(items: Iterable[Item]) -> Mapping[str, str]:
    """Return the key of the conversation of each trace."""
    first: dict[str, tuple[int, str, str]] = {}
    traces: set[str] = set()
    for item in items:
        traces.add(item.trace)
        named = item.reading.extra.get("conversation") if item.reading else None
        if named:
            candidate = (item.start_ns, item.id, named)
            first[item.trace] = min(first.get(item.trace, candidate), candidate)
    return {trace: first[trace][2] if trace in first else trace for trace in traces}


def _sorted(items: Iterable[Item]) -> tuple[Item, ...]:
    """Sort by start. At the same time, a parent comes before its children."""
    by_id = {(item.trace, item.id): item for item in items}

    def depth(item: Item) -> int:
        count, seen = 0, {item.id}
        parent = by_id.get((item.trace, item.parent or ""))
        while parent is not None and parent.id not in seen and count < MAX_LEVELS:
            seen.add(parent.id)
            count += 1
            parent = by_id.get((parent.trace, parent.parent or ""))
        return count

    return tuple(
        sorted(
            by_id.values(),
            key=lambda i: (i.start_ns, i.is_log, i.sequence, depth(i), i.trace, i.id),
        )
    )
