"""The dialects, in the order in which they are asked."""

from collections.abc import Callable, Mapping
from typing import Final

from benchflow_traces.facts import Reading
from benchflow_traces.spans import LogRecord, Span

from . import benchflow, claude_code, codex, genai, openinference

SpanReader = Callable[[Span], Reading | None]
LogReader = Callable[[LogRecord], Reading | None]

SPAN_DIALECTS: Final[Mapping[str, SpanReader]] = {
    "benchflow": benchflow.read_span,
    "claude_code": claude_code.read_span,
    "codex": codex.read_span,
    "openinference": openinference.read_span,
    "gen_ai": genai.read_span,
}
"""In the order in which they are asked. Programs mix `gen_ai` attributes into other dialects."""

LOG_DIALECTS: Final[Mapping[str, LogReader]] = {
    "claude_code": claude_code.read_log,
    "codex": codex.read_log,
}


def read_span(span: Span) -> Reading | None:
    """Return what the first dialect that knows `span` reads from it, or None."""
    for reader in SPAN_DIALECTS.values():
        if (reading := reader(span)) is not None:
            return reading
    return None


def read_log(record: LogRecord) -> Reading | None:
    """Return what the first dialect that knows `record` reads from it, or None."""
    for reader in LOG_DIALECTS.values():
        if (reading := reader(record)) is not None:
            return reading
    return None
