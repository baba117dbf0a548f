"""The routes for traces: OTLP over HTTP, and the records of `benchflow-monitor`."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchflow_contracts import StoreError
from benchflow_traces import OtlpError, decode_logs, decode_records, decode_traces
from benchflow_traces.otlp import MAX_BODY
from litestar import Request, Response, post
from litestar.datastructures import Headers
from litestar.di import NamedDependency
from litestar.exceptions import HTTPException
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from benchflow_dashboard.security.access import PUBLIC

from .codec import SpanRow
from .keys import ingest_key
from .service import MonitorService
from .writer import ServerBusyError

IngestRequest = Request[Any, Any, Any]
PROTOBUF: Final = "application/x-protobuf"
_INGEST: Final[dict[str, Any]] = {
    "status_code": 200,
    "guards": [ingest_key],
    "include_in_schema": False,
    "opt": PUBLIC,
    "request_max_body_size": MAX_BODY,
}


@dataclass(frozen=True, slots=True)
class Decoded:
    """The rows of one request, and why some of its items were refused."""

    rows: Sequence[SpanRow]
    refused: Sequence[str] = ()


@post("/v1/traces", **_INGEST)
async def receive_traces(
    request: IngestRequest, monitor: NamedDependency[MonitorService]
) -> Response[bytes]:
    """Store the spans of an OTLP request durably."""

    def decode(body: bytes, headers: Headers) -> Decoded:
        spans = decode_traces(body, *_kind(headers))
        return Decoded(monitor.span_rows(spans))

    await _receive(request, monitor, decode)
    return _otlp_answer(request, ExportTraceServiceResponse().SerializeToString())


@post("/v1/logs", **_INGEST)
async def receive_logs(
    request: IngestRequest, monitor: NamedDependency[MonitorService]
) -> Response[bytes]:
    """Store the log records of an OTLP request durably."""

    def decode(body: bytes, headers: Headers) -> Decoded:
        return Decoded(monitor.log_rows(decode_logs(body, *_kind(headers))))

    await _receive(request, monitor, decode)
    return _otlp_answer(request, ExportLogsServiceResponse().SerializeToString())


@post("/v1/benchflow/records", **_INGEST)
async def receive_records(
    request: IngestRequest, monitor: NamedDependency[MonitorService]
) -> Response[bytes]:
    """Store the records of `benchflow-monitor` durably. Wrong records are refused alone."""

    def decode(body: bytes, headers: Headers) -> Decoded:
        decoded = decode_records(body, headers.get("content-encoding", ""))
        return Decoded(monitor.span_rows(decoded.spans), decoded.refused)

    decoded = await _receive(request, monitor, decode)
    answer = {"accepted": len(decoded.rows), "refused": decoded.refused}
    return Response(json.dumps(answer).encode(), media_type="application/json")


async def _receive(
    request: IngestRequest,
    monitor: MonitorService,
    decode: Callable[[bytes, Headers], Decoded],
) -> Decoded:
    body = await _body(request)
    try:
        decoded = await monitor.decoding.run(decode, body, request.headers)
        await monitor.take_quota(request, len(decoded.rows))
        await monitor.writer.store(decoded.rows)
    except OtlpError as error:
        raise HTTPException(status_code=400, detail=str(error)) from error
    except ServerBusyError as error:
        raise _later(429, str(error), 1.0) from error
    except StoreError as error:
        raise _later(503, "the spans could not be stored", 5.0) from error
    return decoded


async def _body(request: IngestRequest) -> bytes:
    """Return the body of a request, and refuse a large one before it is in memory."""
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > MAX_BODY:
            raise HTTPException(status_code=413, detail=f"more than {MAX_BODY} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _kind(headers: Headers) -> tuple[str, str]:
    return headers.get("content-type", ""), headers.get("content-encoding", "")


def _otlp_answer(request: IngestRequest, message: bytes) -> Response[bytes]:
    # The answer has the encoding of the request.
    if request.headers.get("content-type", "").startswith("application/json"):
        return Response(b"{}", media_type="application/json")
    return Response(message, media_type=PROTOBUF)


def _later(status: int, detail: str, seconds: float) -> HTTPException:
    headers = {"Retry-After": f"{seconds:g}"}
    return HTTPException(status_code=status, detail=detail, headers=headers)
