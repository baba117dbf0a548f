"""ATIF trajectories that BenchFlow did not run, as rollouts that have ended.

Source of the format: harbor 0.24.0, `harbor.models.trajectories` (ATIF v1.0 to v1.8).
"""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal, cast

from benchflow_contracts import (
    FinishedRollout,
    Observation,
    RolloutNode,
    RolloutTree,
    Step,
    StoreError,
    ToolCall,
    ToolStatus,
    Usage,
)
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

_MOST_BYTES: Final = 256 << 20
_MOST_STEPS: Final = 100_000
_FORMAT: Final = "atif"
_MOST_TOKENS: Final = 2**40
Json = dict[str, Any]


def _text(value: object) -> object:
    """Return the text of a message or of its parts; other parts are named."""
    if not isinstance(value, list):
        return value or ""
    texts: list[str] = []
    for part in cast("list[object]", value):
        fields = cast("Json", part) if isinstance(part, dict) else {}
        texts.append(str(fields.get("text") or f"[{fields.get('type', 'part')}]"))
    return "\n".join(texts)


def _seconds(value: object) -> object:
    if not isinstance(value, str):
        return 0.0
    try:
        return max(datetime.fromisoformat(value).timestamp(), 0.0)
    except (ValueError, OverflowError, OSError):
        return 0.0


def _count(value: object) -> object:
    is_count = type(value) is int and 0 <= value < _MOST_TOKENS
    return value if is_count else 0


Text = Annotated[str, BeforeValidator(_text)]
Seconds = Annotated[float, BeforeValidator(_seconds)]
Count = Annotated[int, BeforeValidator(_count)]


class _Record(BaseModel):
    """A part of a trajectory. A later version may have more fields."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


class _Call(_Record):
    tool_call_id: str
    function_name: str
    arguments: Any = None


class _Result(_Record):
    source_call_id: str | None = None
    content: Text = ""
    extra: Mapping[str, Any] | None = None


class _Observation(_Record):
    results: tuple[_Result, ...] = ()


class _Metrics(_Record):
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    cached_tokens: Count = 0


class _Step(_Record):
    source: Literal["system", "user", "agent"]
    timestamp: Seconds = 0.0
    message: Text = ""
    reasoning_content: str | None = None
    tool_calls: tuple[_Call, ...] | None = None
    observation: _Observation | None = None
    metrics: _Metrics | None = None


class _Agent(_Record):
    name: str
    model_name: str | None = None


class _Trajectory(_Record):
    schema_version: str = Field(pattern=r"^ATIF-v1\.")
    session_id: str | None = None
    trajectory_id: str | None = None
    agent: _Agent
    steps: tuple[_Step, ...] = Field(min_length=1, max_length=_MOST_STEPS)


def import_trajectory(file: Path) -> Iterator[FinishedRollout]:
    """Yield the trajectories of a file: one JSON document, or one trajectory a line.

    Each is a tree with one leaf, and each step of the agent is a node. ATIF has no verdict, so the
    leaf is unscored. Token ids and log-probabilities are not read, because a rollout that BenchFlow
    did not run is not on-policy data.

    Raises:
        StoreError: The file is not ATIF, or is too large.
    """
    if file.stat().st_size > _MOST_BYTES:
        raise StoreError(f"{file.name}: larger than {_MOST_BYTES} bytes")
    data = file.read_bytes()
    try:
        documents = [json.loads(data)]
    except (ValueError, RecursionError):
        documents = [_parse(line, file.name, at) for at, line in _lines(data)]
    for number, document in enumerate(documents, 1):
        yield _finished(_validated(document, f"{file.name}:{number}"))


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    return ((at, line) for at, line in enumerate(data.splitlines(), 1) if line.strip())


def _parse(line: bytes, name: str, number: int) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{name}:{number}: not JSON: {error!s:.200}") from None


def _validated(document: object, where: str) -> _Trajectory:
    try:
        return _Trajectory.model_validate(document)
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, fault["loc"]))
        raise StoreError(f"{where}: not an ATIF trajectory: {place}: {fault['msg']}") from None


def _finished(source: _Trajectory) -> FinishedRollout:
    root = RolloutNode(id="n0")
    index, node = {root.id: root}, root
    for number, step in enumerate(_steps(source), 1):
        child = RolloutNode(id=f"n{number}", parent=node, step=step)
        node.children.append(child)
        index[child.id] = node = child
    name = source.trajectory_id or source.session_id or "trajectory"
    return FinishedRollout(
        tree=RolloutTree(
            rollout_id=name,
            task_id="imported",
            root=root,
            index=index,
            status="ungraded",
            meta={"imported_from": _FORMAT, "schema_version": source.schema_version},
        ),
        task_digest="",
        instruction=next((each.message for each in source.steps if each.source == "user"), ""),
        agent=source.agent.name,
        model=source.agent.model_name,
        sandbox="",
        finished_at=max(each.timestamp for each in source.steps),
        task_format=_FORMAT,
    )


def _steps(source: _Trajectory) -> Iterator[Step]:
    """Yield the steps of the agent. Words of others before a step are its prompt."""
    words: list[str] = []
    clock = 0.0
    last = max((at for at, s in enumerate(source.steps) if s.source == "agent"), default=-1)
    for at, each in enumerate(source.steps):
        clock = max(clock, each.timestamp)
        if each.source != "agent":
            words.append(each.message)
            continue
        calls = each.tool_calls or ()
        yield Step(
            id=f"s{at + 1}",
            prompt="\n\n".join(words) if words else None,
            reasoning=each.reasoning_content or "",
            message=each.message,
            tool_calls=tuple(_tool_call(call) for call in calls),
            observations=tuple(_observations(each)),
            usage=_usage(each.metrics),
            stop_reason="end_turn" if at == last else None,
            started_at=clock,
            finished_at=clock,
        )
        words = []


def _tool_call(call: _Call) -> ToolCall:
    return ToolCall(
        id=call.tool_call_id,
        title=call.function_name,
        name=call.function_name,
        raw_input=call.arguments,
    )


def _observations(step: _Step) -> Iterator[Observation]:
    for result in () if step.observation is None else step.observation.results:
        extra = result.extra or {}
        ident = result.source_call_id or str(extra.get("tool_call_id") or "")
        status: ToolStatus = "failed" if extra.get("status") == "failed" else "completed"
        yield Observation(tool_call_id=ident, status=status, content=result.content)


def _usage(metrics: _Metrics | None) -> Usage | None:
    if metrics is None:
        return None
    return Usage(
        input_tokens=metrics.prompt_tokens,
        output_tokens=metrics.completion_tokens,
        cached_tokens=metrics.cached_tokens,
    )
