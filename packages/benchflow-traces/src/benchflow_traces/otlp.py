"""Decode the bodies of OTLP/HTTP requests: protobuf or JSON, plain or gzip.

Source of the format: https://opentelemetry.io/docs/specs/otlp/ (OTLP 1.x). Its JSON has hexadecimal
ids, where the JSON mapping of protobuf has base64.
"""

import base64
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar, cast

from benchflow_contracts import BenchFlowError
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from .spans import Attribute, LogRecord, Span, SpanEvent

MAX_BODY = 16 * 2**20
"""Bytes of a request after decompression. An exporter sends 512 spans at once by default."""
MAX_DEPTH = 32
"""Levels of nested attribute values. A deeper value becomes None."""

_ERROR = Status.STATUS_CODE_ERROR

MessageT = TypeVar("MessageT", bound=Message)


class OtlpError(BenchFlowError):
    """The body of a request is not OTLP."""


def decode_traces(body: bytes, content_type: str, encoding: str = "") -> tuple[Span, ...]:
    """Return the spans of a request to `/v1/traces`, in their order.

    A span without valid ids is left out: nothing can refer to such a span.

    Raises:
        OtlpError: The body is too large, or is not what `content_type` and `encoding` say.
    """
    request = _decode(ExportTraceServiceRequest, body, content_type, encoding)
    return tuple(_spans(request))


def decode_logs(body: bytes, content_type: str, encoding: str = "") -> tuple[LogRecord, ...]:
    """Return the log records of a request to `/v1/logs`, in their order.

    Raises:
        OtlpError: The body is too large, or is not what `content_type` and `encoding` say.
    """
    request = _decode(ExportLogsServiceRequest, body, content_type, encoding)
    return tuple(_logs(request))


def _decode(kind: type[MessageT], body: bytes, content_type: str, encoding: str) -> MessageT:
    data = decompressed(body, encoding)
    media = content_type.partition(";")[0].strip().lower()
    if media == "application/x-protobuf":
        message = kind()
        try:
            message.ParseFromString(data)
        except DecodeError as error:
            raise OtlpError(f"the body is not protobuf: {error}") from error
        return message
    if media == "application/json":
        return _from_json(kind, data)
    raise OtlpError(
        f"content type {content_type[:80]!r} is not supported",
        hint="send application/x-protobuf or application/json",
    )


def decompressed(body: bytes, encoding: str) -> bytes:
    """Return the bytes of a body, at most `MAX_BODY`.

    Raises:
        OtlpError: The body is too large, or not in `encoding`.
    """
    name = encoding.strip().lower()
    if name in {"", "identity"}:
        data = body
    elif name == "gzip":
        reader = zlib.decompressobj(wbits=31)
        try:
            data = reader.decompress(body, MAX_BODY + 1)
        except zlib.error as error:
            raise OtlpError(f"the body is not gzip: {error}") from error
        if len(data) <= MAX_BODY and not reader.eof:
            raise OtlpError("the gzip body is incomplete")
    else:
        raise OtlpError(f"encoding {name[:80]!r} is not supported", hint="use gzip or none")
    if len(data) > MAX_BODY:
        raise OtlpError(f"the body has more than {MAX_BODY} bytes", hint="send smaller batches")
    return data


def _from_json(kind: type[MessageT], data: bytes) -> MessageT:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise OtlpError(f"the body is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise OtlpError("the body is not a JSON object")
    message = kind()
    try:
        fields = cast("Any", _with_base64_ids(cast("object", document)))
        ParseDict(fields, message, ignore_unknown_fields=True)
    except (ParseError, ValueError, RecursionError) as error:
        raise OtlpError(f"the body is not OTLP: {error}") from error
    return message


_IDS = {"traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id"}


def _with_base64_ids(value: object) -> object:
    """Return `value` with base64 in place of hexadecimal ids; an invalid id becomes empty."""
    if isinstance(value, list):
        return [_with_base64_ids(item) for item in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    items = cast("dict[str, object]", value).items()
    return {key: _base64(v) if key in _IDS else _with_base64_ids(v) for key, v in items}


def _base64(value: object) -> str:
    try:
        return base64.b64encode(bytes.fromhex(str(value))).decode()
    except ValueError:
        return ""


def _spans(request: ExportTraceServiceRequest) -> Iterator[Span]:
    for resource in request.resource_spans:
        program = _attributes(resource.resource.attributes)
        for scope in resource.scope_spans:
            library = scope.scope.name
            for span in scope.spans:
                trace, identifier, parent = span.trace_id, span.span_id, span.parent_span_id
                if not (_is_id(trace, 16) and _is_id(identifier, 8)):
                    continue
                start, status = span.start_time_unix_nano, span.status
                yield Span(
                    trace_id=trace.hex(),
                    span_id=identifier.hex(),
                    parent_id=parent.hex() if _is_id(parent, 8) else None,
                    name=span.name,
                    start_ns=start,
                    end_ns=max(start, span.end_time_unix_nano),
                    failed=status.code == _ERROR,
                    message=status.message,
                    attributes=_attributes(span.attributes),
                    events=tuple(
                        [
                            SpanEvent(e.name, e.time_unix_nano, _attributes(e.attributes))
                            for e in span.events
                        ]
                    ),
                    resource=program,
                    scope=library,
                )


def _logs(request: ExportLogsServiceRequest) -> Iterator[LogRecord]:
    for resource in request.resource_logs:
        program = _attributes(resource.resource.attributes)
        for scope in resource.scope_logs:
            for record in scope.log_records:
                attributes = _attributes(record.attributes)
                # Codex fills `event_name` with a line of its source; its name is the attribute.
                name = attributes.get("event.name")
                yield LogRecord(
                    event=name if isinstance(name, str) and name else record.event_name,
                    time_ns=record.time_unix_nano or record.observed_time_unix_nano,
                    body=_value(record.body, 0),
                    attributes=attributes,
                    trace_id=record.trace_id.hex() if _is_id(record.trace_id, 16) else None,
                    span_id=record.span_id.hex() if _is_id(record.span_id, 8) else None,
                    resource=program,
                    scope=scope.scope.name,
                )


def _is_id(value: bytes, size: int) -> bool:
    return len(value) == size and any(value)


def _attributes(pairs: Iterable[KeyValue], depth: int = 0) -> Mapping[str, Attribute]:
    return {pair.key: _value(pair.value, depth) for pair in pairs}


def _value(value: AnyValue, depth: int) -> Attribute:
    kind = value.WhichOneof("value")
    if kind is None or depth > MAX_DEPTH:
        return None
    if kind == "string_value":
        return value.string_value
    if kind == "array_value":
        return [_value(item, depth + 1) for item in value.array_value.values]
    if kind == "kvlist_value":
        return _attributes(value.kvlist_value.values, depth + 1)
    return cast("Attribute", getattr(value, kind))
