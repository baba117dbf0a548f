"""Recorded traces are scored without a server, and a production rollout becomes a dataset row."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from benchflow_contracts import UsageError
from benchflow_dashboard.monitor.config import MonitorConfig, RewardTable
from benchflow_dashboard.monitor.keys import add_key, read_keys
from benchflow_dashboard.monitor.replay import replay
from benchflow_dashboard.security.token_file import digest_of
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    from pathlib import Path

SPAN: dict[str, Any] = {
    "traceId": "01" * 16,
    "spanId": "02" * 8,
    "name": "execute_tool find",
    "startTimeUnixNano": "1000",
    "endTimeUnixNano": "2000",
    "attributes": [
        {"key": "gen_ai.operation.name", "value": {"stringValue": "execute_tool"}},
        {"key": "gen_ai.tool.name", "value": {"stringValue": "find"}},
        {"key": "gen_ai.tool.call.result", "value": {"stringValue": "x"}},
    ],
}
REQUEST = {"resourceSpans": [{"scopeSpans": [{"spans": [SPAN]}]}]}
RECORD = {"rollout": "talk", "index": 0, "kind": "ended", "ts": 1.0}


def _rewards(paths: list[Path]) -> list[tuple[str, dict[str, float | None]]]:
    config = MonitorConfig(rewards=(RewardTable(kind="tool_errors"), RewardTable(kind="loops")))
    results = asyncio.run(replay(paths, config))
    return [
        (rollout.id, {score.source: score.verdict.reward for score in scores})
        for rollout, scores in results
    ]


def test_lines_of_json_and_a_protobuf_file_are_scored(tmp_path: Path) -> None:
    lines = tmp_path / "traces.jsonl"
    lines.write_text(f"{json.dumps(REQUEST)}\n\n{json.dumps({'records': [RECORD]})}\n")
    binary = tmp_path / "traces.bin"
    span = {**SPAN, "traceId": "A" * 22 + "==", "spanId": "B" * 11 + "="}
    message = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
    request = ParseDict(message, ExportTraceServiceRequest())
    request.resource_spans[0].scope_spans[0].spans[0].trace_id = b"\7" * 16
    binary.write_bytes(request.SerializeToString())

    assert _rewards([lines, binary]) == [
        ("01" * 16, {"tool_errors": 1.0, "loops": 1.0}),
        ("07" * 16, {"tool_errors": 1.0, "loops": 1.0}),
        ("talk", {"tool_errors": None, "loops": None}),
    ]


@pytest.mark.parametrize(
    ("text", "place"),
    [("{}\n{", "traces:2"), ('{"records": [{}]}', "traces:1"), ("\n{x", "traces:2")],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, place: str) -> None:
    path = tmp_path / "traces"
    path.write_text(text)

    with pytest.raises(UsageError) as error:
        _rewards([path])

    assert place in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing"):
        _rewards([tmp_path / "nothing"])


def test_a_key_is_stored_by_its_digest_and_only_for_this_user(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"

    first, second = add_key(path, "shop"), add_key(path, "crm", 10.0)

    assert [(key.name, key.digest, key.spans_per_sec) for key in read_keys(path)] == [
        ("shop", digest_of(first), None),
        ("crm", digest_of(second), 10.0),
    ]
    assert first not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(UsageError, match="already"):
        add_key(path, "shop")
    with pytest.raises(UsageError, match="not a name"):
        add_key(path, "a]\nb")
