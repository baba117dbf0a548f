"""Production traces of a file as rollouts that have ended."""

from collections.abc import Iterator
from pathlib import Path

from benchflow_contracts import FinishedRollout, RolloutTree, StoreError, VerifyResult

from .client_records import decode_records
from .observed_rollout import ObservedRollout, observed_rollouts
from .otlp import OtlpError, decode_logs, decode_traces
from .spans import LogRecord, Span

_FORMAT = "traces"
_JSON = "application/json"
_MOST_BYTES = 16 << 20
"""The longest line."""


def import_traces(file: Path) -> Iterator[FinishedRollout]:
    """Yield the conversations of a file as rollouts that have ended.

    Each line is the JSON body of a request of OTLP (`resourceSpans` or `resourceLogs`), or one
    record, or a list `records`, of `benchflow-monitor`. A file that is one JSON document of OTLP
    is read, too. Scores that the program gave itself are verdicts by their names; one named
    `reward` is the return. A rollout without it is unscored.

    Raises:
        StoreError: A line is not of these formats.
    """
    spans: list[Span] = []
    logs: list[LogRecord] = []
    with file.open("rb") as lines:
        number = 0
        while line := lines.readline(_MOST_BYTES + 1):
            number += 1
            if number == 1 and line.strip() in (b"{", b"["):
                line += lines.read(_MOST_BYTES)
            if len(line) > _MOST_BYTES:
                raise StoreError(f"{file.name}:{number}: longer than {_MOST_BYTES} bytes")
            if line.strip():
                _decode(line, f"{file.name}:{number}", spans, logs)
    for observed in observed_rollouts(spans, logs):
        yield _finished(observed)


def _decode(line: bytes, where: str, spans: list[Span], logs: list[LogRecord]) -> None:
    try:
        if b'"resourceSpans"' in line or b'"resourceLogs"' in line:
            found = decode_traces(line, _JSON)
            spans += found
            logs += () if found else decode_logs(line, _JSON)
            return
        body = line if b'"records"' in line else b'{"records": [' + line + b"]}"
        decoded = decode_records(body)
    except OtlpError as error:
        raise StoreError(f"{where}: {error}", hint="see the formats of `traces`") from error
    if decoded.refused:
        raise StoreError(f"{where}: {decoded.refused[0]}")
    spans += decoded.spans


def _finished(observed: ObservedRollout) -> FinishedRollout:
    source = observed.tree
    leaf = source.leaves[0]
    for event in observed.evaluations:
        leaf.results.setdefault(event.source, VerifyResult(reward=event.value))
    is_over = source.status != "running"
    tree = RolloutTree(
        rollout_id=source.rollout_id,
        task_id=observed.service,
        root=source.root,
        index=source.index,
        status=source.status if is_over else "completed",
        meta={
            "imported_from": _FORMAT,
            "version": observed.version,
            "environment": observed.environment,
            "complete": observed.complete,
        },
        error=source.error,
    )
    first = next((step.prompt for step in observed.steps if step.prompt), "")
    return FinishedRollout(
        tree=tree,
        task_digest="",
        instruction=first,
        agent=observed.service,
        model=observed.models[0] if observed.models else None,
        sandbox="",
        finished_at=observed.ended_at,
        task_format=_FORMAT,
    )
