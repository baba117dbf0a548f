"""OTLP in every encoding, and bytes that are not OTLP."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest
from benchflow_traces import OtlpError, decode_logs, decode_traces, observed_rollouts
from benchflow_traces.messages import read_json
from benchflow_traces.otlp import MAX_BODY
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    from typing import Any

PROTOBUF = "application/x-protobuf"
JSON = "application/json"


def _request(messages: str = "[]") -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "shop"
    span = resource.scope_spans.add().spans.add(
        trace_id=b"\1" * 16,
        span_id=b"\2" * 8,
        name="chat m",
        start_time_unix_nano=1,
        end_time_unix_nano=2,
    )
    span.attributes.add(key="gen_ai.operation.name").value.string_value = "chat"
    span.attributes.add(key="gen_ai.input.messages").value.string_value = messages
    nested = span.attributes.add(key="nested").value.kvlist_value.values.add(key="list")
    nested.value.array_value.values.add(int_value=7)
    return request


def _as_json(request: ExportTraceServiceRequest) -> bytes:
    """Encode as an SDK does: ids in hexadecimal."""
    document: Any = MessageToDict(request)
    span = document["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    span |= {"traceId": "01" * 16, "spanId": "02" * 8}
    return json.dumps(document).encode()


def test_json_and_protobuf_with_and_without_gzip_give_the_same_spans() -> None:
    body = _request().SerializeToString()

    spans = decode_traces(body, PROTOBUF)

    assert decode_traces(_as_json(_request()), f"{JSON}; charset=utf-8") == spans
    assert decode_traces(gzip.compress(body), PROTOBUF, "gzip") == spans
    assert spans[0].attributes["nested"] == {"list": [7]}
    assert spans[0].trace_id == "01" * 16


def test_a_span_without_valid_ids_is_left_out() -> None:
    request = _request()
    request.resource_spans[0].scope_spans[0].spans[0].trace_id = b"short"

    assert decode_traces(request.SerializeToString(), PROTOBUF) == ()


def test_log_records_are_decoded() -> None:
    request = ExportLogsServiceRequest()
    record = (
        request.resource_logs.add()
        .scope_logs.add()
        .log_records.add(event_name="codex.user_prompt", time_unix_nano=5)
    )
    record.attributes.add(key="prompt").value.string_value = "hello"

    (read,) = decode_logs(request.SerializeToString(), PROTOBUF)

    assert (read.event, read.time_ns, read.text("prompt")) == ("codex.user_prompt", 5, "hello")


@pytest.mark.parametrize(
    ("body", "kind", "encoding", "problem"),
    [
        (b"\xff\xff", PROTOBUF, "", "not protobuf"),
        (b"[]", JSON, "", "not a JSON object"),
        (b"{", JSON, "", "not JSON"),
        (b"[" * 100_000, JSON, "", "not JSON"),
        (b'{"resourceSpans": 3}', JSON, "", "not OTLP"),
        (b"", "text/html", "", "not supported"),
        (b"not gzip", PROTOBUF, "gzip", "not gzip"),
        (b"x", PROTOBUF, "br", "not supported"),
        (gzip.compress(b"\0" * (MAX_BODY + 1)), PROTOBUF, "gzip", "more than"),
        (gzip.compress(b"hello" * 100)[:-12], PROTOBUF, "gzip", "incomplete"),
    ],
)
def test_other_bytes_are_a_typed_error(body: bytes, kind: str, encoding: str, problem: str) -> None:
    with pytest.raises(OtlpError, match=problem):
        decode_traces(body, kind, encoding)


@given(st.binary(max_size=300), st.sampled_from([PROTOBUF, JSON]), st.sampled_from(["", "gzip"]))
def test_random_bytes_never_raise_another_error(body: bytes, kind: str, encoding: str) -> None:
    try:
        decode_traces(body, kind, encoding)
        decode_logs(body, kind, encoding)
    except OtlpError:
        pass


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "parts", "type", "content", "id", "name", "tool_calls", "x"]),
            inner | st.sampled_from(["tool_call", "tool", "text", "reasoning"]),
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(_JSON)
def test_any_content_of_messages_folds(messages: object) -> None:
    body = _request(json.dumps(messages)).SerializeToString()

    (rollout,) = observed_rollouts(decode_traces(body, PROTOBUF))

    assert len(rollout.steps) == 1


@given(st.text() | _JSON.map(json.dumps))
def test_json_is_read_as_the_standard_library_reads_it(text: str) -> None:
    try:
        expected = repr(json.loads(text))
    except ValueError:
        with pytest.raises(ValueError, match="char"):
            read_json(text)
    else:
        assert repr(read_json(text)) == expected


def test_a_lone_surrogate_in_a_message_is_replaced() -> None:
    text = '[{"role": "user", "parts": [{"type": "text", "content": "a\\ud800b"}]}]'
    body = _request(text).SerializeToString()

    (rollout,) = observed_rollouts(decode_traces(body, PROTOBUF))

    assert rollout.steps[0].prompt == "a?b"
