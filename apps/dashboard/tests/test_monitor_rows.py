"""Spans as rows of the database of monitor mode."""

from __future__ import annotations

from benchflow_dashboard.monitor.codec import parse_rows, span_rows
from benchflow_traces import Span, SpanEvent
from hypothesis import given
from hypothesis import strategies as st


@given(st.text() | st.just("\ud800"), st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False))
def test_a_stored_span_is_the_span_that_came(text: str, number: float) -> None:
    event = SpanEvent(text, 3, {"exception.message": text})
    span = Span(
        trace_id="a" * 32,
        span_id="b" * 16,
        parent_id=None,
        name=text,
        start_ns=1,
        end_ns=2,
        attributes={"text": text, "more": [number, True, None, {text: [text]}]},
        events=(event,),
    )

    (row,) = span_rows([span], redact=str)

    assert row.body.isascii()
    assert parse_rows([(row.id, row.body)]) == ([span], [])


def test_bytes_are_stored_as_hexadecimal_digits() -> None:
    span = Span("a" * 32, "b" * 16, None, "x", 1, 2, attributes={"data": b"\xff\x00"})

    (row,) = span_rows([span])

    ((stored,), _) = parse_rows([(row.id, row.body)])
    assert stored.attributes == {"data": "ff00"}
