"""Score recorded traces without a server and without a database."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchflow_contracts import UsageError
from benchflow_traces import (
    LogRecord,
    ObservedRollout,
    OtlpError,
    Span,
    decode_logs,
    decode_records,
    decode_traces,
    observed_rollouts,
)

from .config import MonitorConfig
from .database import Score
from .scoring import OnlineScorer


async def replay(
    paths: Iterable[Path], config: MonitorConfig
) -> list[tuple[ObservedRollout, list[Score]]]:
    """Return the rollouts of recorded requests, with their rewards.

    A file has one request of OTLP in JSON on each line, as the file exporter of OpenTelemetry's
    collector writes it, or one object with `records` of `benchflow-monitor`; a file that is not
    text is one request in protobuf.

    Raises:
        UsageError: A file cannot be read, or a line is neither (`file:line`).
    """
    spans: list[Span] = []
    logs: list[LogRecord] = []
    for path in paths:
        for more, records in _requests(path):
            spans += more
            logs += records
    scorer = OnlineScorer(config)
    return [(one, await scorer.score(one)) for one in observed_rollouts(spans, logs)]


def _requests(path: Path) -> Iterator[tuple[Iterable[Span], Iterable[LogRecord]]]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    if data.lstrip()[:1] != b"{":
        yield _decoded(data, "application/x-protobuf", str(path))
        return
    for number, line in enumerate(data.splitlines(), 1):
        if line.strip():
            yield _decoded(line, "application/json", f"{path}:{number}")


def _decoded(data: bytes, kind: str, where: str) -> tuple[Iterable[Span], Iterable[LogRecord]]:
    try:
        if kind == "application/json" and _has(data, "records"):
            decoded = decode_records(data)
            if decoded.refused:
                raise UsageError(decoded.refused[0], where=where)
            return decoded.spans, ()
        if kind == "application/json" and _has(data, "resourceLogs"):
            return (), decode_logs(data, kind)
        return decode_traces(data, kind), ()
    except OtlpError as error:
        raise UsageError(f"not a request with traces: {error}", where=where) from error


def _has(data: bytes, key: str) -> bool:
    try:
        return key in json.loads(data)
    except (ValueError, RecursionError):
        return False
