"""Records of the small client become the same rollouts as spans of OpenTelemetry."""

from __future__ import annotations

import json
from typing import Any

import pytest
from benchflow_traces import OtlpError, decode_records, observed_rollouts
from hypothesis import given
from hypothesis import strategies as st


def _record(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    resource = {"service": "shop", "version": "2", "environment": "live"}
    return {
        "rollout": "talk-1",
        "index": index,
        "kind": kind,
        "ts": 100.0 + index,
        "resource": resource,
        **fields,
    }


RECORDS = [
    _record(0, "started"),
    _record(
        1,
        "step",
        started_at=100.0,
        prompt="where?",
        reasoning="look",
        model="m",
        tool_calls=[{"id": "c1", "name": "track", "arguments": {"id": 7}}],
        observations=[{"tool_call_id": "c1", "content": "at sea", "status": "failed"}],
        usage={"input_tokens": 5, "output_tokens": 2},
    ),
    _record(2, "step", started_at=101.0, message="at sea", stop_reason="end_turn"),
    _record(3, "score", name="vote", value=0.5),
    _record(4, "ended", error={"type": "Lost", "message": "gone"}),
]


def _body(records: list[Any]) -> bytes:
    return json.dumps({"records": records}).encode()


@given(st.permutations(RECORDS), st.integers(0, 4))
def test_records_in_any_order_and_twice_are_one_rollout(
    records: list[dict[str, Any]], again: int
) -> None:
    decoded = decode_records(_body([*records, records[again]]))

    (rollout,) = observed_rollouts(decoded.spans)

    assert decoded.refused == ()
    assert (rollout.id, rollout.service, rollout.version) == ("talk-1", "shop", "2")
    assert (rollout.complete, rollout.tree.status) == (True, "failed")
    first, second = rollout.steps
    assert (first.prompt, first.reasoning) == ("where?", "look")
    assert first.tool_calls[0].raw_input == {"id": 7}
    assert [(seen.status, seen.content) for seen in first.observations] == [("failed", "at sea")]
    assert (second.usage, second.stop_reason) == (None, "end_turn")
    assert [(score.source, score.value) for score in rollout.evaluations] == [("vote", 0.5)]


def test_a_wrong_record_is_refused_alone_with_its_place() -> None:
    wrong = _record(1, "step", started_at="soon")

    decoded = decode_records(_body([RECORDS[0], wrong, 7, _record(2, "other")]))

    assert len(decoded.spans) == 1
    assert [text.partition(":")[0] for text in decoded.refused] == [
        "records[1].step.started_at",
        "records[2].",
        "records[3].",
    ]


@pytest.mark.parametrize("body", [b"{}", b"[]", b"{", b'{"records": 3}', b"[" * 99_999])
def test_another_body_is_a_typed_error(body: bytes) -> None:
    with pytest.raises(OtlpError):
        decode_records(body)
