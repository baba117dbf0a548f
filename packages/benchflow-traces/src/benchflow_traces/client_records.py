"""Decode the records of `benchflow-monitor` as spans, so that they are stored and folded alike."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

from benchflow_contracts import Model, ToolStatus, Usage
from pydantic import Field, TypeAdapter, ValidationError

from .otlp import OtlpError, decompressed
from .spans import Span

MAX_RECORDS = 5_000
"""Records of one request."""

_Id = Annotated[str, Field(min_length=1, max_length=200)]
_Seconds = Annotated[float, Field(ge=0, lt=2**33, allow_inf_nan=False)]


class Program(Model):
    """The program that reports."""

    service: str = Field(default="", max_length=200)
    version: str = Field(default="", max_length=200)
    environment: str = Field(default="", max_length=200)


class _Record(Model):
    rollout: _Id
    index: int = Field(ge=0, lt=2**31)
    """The number of the record in its rollout. A record that comes twice counts once."""
    ts: _Seconds
    resource: Program = Program()


class StartedRecord(_Record):
    """A rollout began."""

    kind: Literal["started"]


class ReportedCall(Model):
    """A tool call of a step."""

    id: str = Field(default="", max_length=200)
    name: str = Field(default="tool", max_length=200)
    arguments: Any = None


class ReportedResult(Model):
    """A result of a tool call."""

    tool_call_id: str = Field(default="", max_length=200)
    content: str = ""
    status: ToolStatus = "completed"


class StepRecord(_Record):
    """A step of a rollout."""

    kind: Literal["step"]
    started_at: _Seconds
    role: str = Field(default="agent", max_length=200)
    prompt: str | None = None
    reasoning: str = ""
    message: str = ""
    tool_calls: tuple[ReportedCall, ...] = ()
    observations: tuple[ReportedResult, ...] = ()
    usage: Usage | None = None
    model: str | None = Field(default=None, max_length=200)
    stop_reason: str | None = Field(default=None, max_length=200)


class ScoreRecord(_Record):
    """A score that the program gave."""

    kind: Literal["score"]
    name: str = Field(min_length=1, max_length=200)
    value: float = Field(allow_inf_nan=False)
    explanation: str = ""


class ReportedError(Model):
    """Why a rollout failed."""

    type: str = Field(default="Error", max_length=200)
    message: str = ""


class EndedRecord(_Record):
    """A rollout ended."""

    kind: Literal["ended"]
    error: ReportedError | None = None


ClientRecord = StartedRecord | StepRecord | ScoreRecord | EndedRecord
_record: TypeAdapter[ClientRecord] = TypeAdapter(
    Annotated[ClientRecord, Field(discriminator="kind")]
)


@dataclass(frozen=True, slots=True)
class DecodedRecords:
    """The spans of a request, and the records that were refused."""

    spans: tuple[Span, ...]
    refused: tuple[str, ...]
    """One sentence for each refused record. The others of the request are kept."""


def decode_records(body: bytes, encoding: str = "") -> DecodedRecords:
    """Return the spans of a request to `/v1/benchflow/records`.

    The body is `{"records": [...]}` in JSON, plain or gzip. Each record becomes one span of a
    trace that the rollout's id names.

    Raises:
        OtlpError: The body is too large, or is not such a JSON object.
    """
    try:
        document = json.loads(decompressed(body, encoding))
    except (ValueError, RecursionError) as error:
        raise OtlpError(f"the body is not JSON: {error}") from error
    items = cast("Mapping[str, object]", document).get("records") if _is_object(document) else None
    if not isinstance(items, list):
        raise OtlpError("the body is not an object with a list 'records'")
    records = cast("list[object]", items)
    if len(records) > MAX_RECORDS:
        raise OtlpError(f"the body has more than {MAX_RECORDS} records", hint="send fewer at once")
    spans: list[Span] = []
    refused: list[str] = []
    for number, item in enumerate(records):
        try:
            spans.extend(_spans(_record.validate_python(item, strict=False)))
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in problem["loc"])
            refused.append(f"records[{number}].{place}: {problem['msg']}")
        except (ValueError, RecursionError):
            refused.append(f"records[{number}]: not JSON, or nested too deep")
    return DecodedRecords(tuple(spans), tuple(refused))


def _spans(record: ClientRecord) -> Iterator[Span]:
    trace = hashlib.sha256(record.rollout.encode()).hexdigest()[:32]
    root = f"{0:015x}f"
    begin = record.started_at if isinstance(record, StepRecord) else record.ts
    yield Span(
        trace_id=trace,
        span_id=root if isinstance(record, EndedRecord) else f"{record.index + 1:015x}a",
        parent_id=None if isinstance(record, EndedRecord) else root,
        name=f"benchflow.{record.kind}",
        start_ns=int(begin * 1e9),
        end_ns=int(max(begin, record.ts) * 1e9),
        attributes={
            "benchflow.rollout": record.rollout,
            "benchflow.record": record.model_dump_json(exclude={"resource"}),
        },
        resource={
            "service.name": record.resource.service,
            "service.version": record.resource.version,
            "deployment.environment.name": record.resource.environment,
        },
        scope="benchflow-monitor",
    )


def parse_record(text: str) -> ClientRecord | None:
    """Return the record of a span that `decode_records` made, or None."""
    try:
        return _record.validate_json(text)
    except ValidationError:
        return None


def _is_object(value: object) -> bool:
    return isinstance(value, Mapping)
