"""Episodes of verifiers 0.4 that BenchFlow did not run, as rollouts.

Source of the format: verifiers 0.4.0, `Episode`, `Trace` and `MessageNode` (trace version 1). The
file `traces.jsonl` has one episode a line, and `export_sft` writes one trace a line.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, cast

from benchflow_contracts import (
    Event,
    Evidence,
    FinishedRollout,
    NodeScored,
    Observation,
    Reward,
    RolloutFinished,
    RolloutStarted,
    Step,
    StepFinished,
    StopReason,
    StoreError,
    ToolCall,
    Usage,
    VerifyResult,
)
from benchflow_contracts.verdict import MAX_REWARD
from benchflow_kernel import fold
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

_MOST_BYTES: Final = 256 << 20
"""The longest line."""
_MOST_NODES: Final = 100_000
_AGENT: Final = "verifiers"
TASK_HASH: Final = "verifiers_task_hash"
"""The key of a verdict's `meta` with the content hash of the task of the trace."""


def _list(value: object) -> object:
    return value or []


def _finite(value: object) -> object:
    """Drop a time that is not a number, such as NaN: JSON of Python may have one."""
    return value if isinstance(value, (int, float)) and math.isfinite(value) else 0.0


Time = Annotated[float, BeforeValidator(_finite)]


class _Record(BaseModel):
    """A part of a record. A later version may have more fields."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class _ToolCall(_Record):
    id: str
    name: str
    arguments: str = ""


class _Message(_Record):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[_ToolCall], BeforeValidator(_list)] = []
    tool_call_id: str = ""

    @property
    def text(self) -> str:
        """The text; images and other parts are named."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "\n".join(str(part.get("text") or f"[{part.get('type')}]") for part in self.content)


class _Node(_Record):
    parent: int | None = None
    message: _Message
    sampled: bool = False
    timestamp: Time = 0.0


class _Usage(_Record):
    prompt_tokens: int = Field(default=0, ge=0)
    completion_tokens: int = Field(default=0, ge=0)
    cached_input_tokens: int | None = Field(default=0, ge=0)


class _Call(_Record):
    node: int | None = None
    model: str | None = None
    usage: _Usage | None = None


class _Reward(_Record):
    score: float = Field(allow_inf_nan=False)
    weight: float = Field(default=1.0, allow_inf_nan=False)


class _Agent(_Record):
    name: str | None = None
    config: Mapping[str, Any] = {}


class _Error(_Record):
    type: str = ""
    message: str = ""


class _Task(_Record):
    data: Mapping[str, Any] = {}
    key: str = ""
    hash: str = ""


class _Trace(_Record):
    id: str
    task: _Task | None = None
    agent: _Agent | None = None
    nodes: list[_Node] = Field(default=[], max_length=_MOST_NODES)
    calls: list[_Call] = []
    rewards: Mapping[str, _Reward | None] = {}
    metrics: Mapping[str, float | None] = {}
    ok: bool = True
    stop_condition: str | None = None
    errors: list[_Error] = []


class _Episode(_Record):
    id: str
    task: _Task
    traces: list[_Trace]
    errors: list[_Error] = []


def imported_rollouts(file: Path) -> Iterator[FinishedRollout]:
    """Yield the episodes of a `traces.jsonl` as rollouts that have ended.

    One episode is one tree: each trace is a path below the root, and each answer of a model is a
    node. The rewards are those of the file. Token ids and log-probabilities are not read, and no
    model call is recorded: a rollout that BenchFlow did not run is not on-policy data, and an
    exporter for RL leaves it out.

    Raises:
        StoreError: A line is not an episode or a trace. The message has its number.
    """
    with file.open("rb") as lines:
        number = 0
        while line := lines.readline(_MOST_BYTES + 1):
            number += 1
            if len(line) > _MOST_BYTES:
                raise StoreError(f"{file.name}:{number}: longer than {_MOST_BYTES} bytes")
            if line.strip():
                yield _rollout(_read(line, f"{file.name}:{number}"))


async def score_imported(rollout: FinishedRollout, reward: Reward) -> None:
    """Score the leaves of an imported rollout by a reward that needs no sandbox.

    The verdicts replace those of the file that have the name of the reward.

    Raises:
        EvidenceMissingError: The reward needs a task or a sandbox.
        RewardError: Scoring failed.
    """
    for leaf in rollout.tree.leaves:
        leaf.results[reward.name] = await reward.score(leaf, Evidence())


def _read(line: bytes, where: str) -> _Episode:
    try:
        found: Any = json.loads(line)
        if isinstance(found, dict) and "traces" not in found:
            trace = _Trace.model_validate(found)
            return _Episode(id=trace.id, task=trace.task or _Task(), traces=[trace])
        return _Episode.model_validate(found)
    except (ValueError, RecursionError) as error:
        problem = str(error)
        if isinstance(error, ValidationError):
            fault = error.errors(include_input=False, include_url=False)[0]
            problem = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
        raise StoreError(f"{where}: not an episode of verifiers: {problem:.300}") from None


def _rollout(episode: _Episode) -> FinishedRollout:
    events = list(_events(episode))
    task = episode.task
    models = [call.model for trace in episode.traces for call in trace.calls if call.model]
    instruction = task.data.get("prompt")
    return FinishedRollout(
        tree=fold(events),
        task_digest=task.hash,
        instruction=instruction if isinstance(instruction, str) else "",
        agent=_AGENT,
        model=models[0] if models else None,
        sandbox="imported",
        finished_at=events[-1].ts,
        task_format="verifiers",
        events=events,
    )


def _events(episode: _Episode) -> Iterator[Event]:
    times = [node.timestamp for trace in episode.traces for node in trace.nodes]
    begin, end = min(times, default=0.0), max(times, default=0.0)
    task = str(episode.task.data.get("id") or episode.task.key or "imported")
    yield RolloutStarted(
        seq=0,
        ts=begin,
        rollout_id=episode.id,
        task_id=task,
        root="root",
        meta={"imported_from": "verifiers", "on_policy": False},
    )
    seq = 1
    for at, trace in enumerate(episode.traces):
        last = "root"
        for event in _steps(trace, f"t{at}", seq):
            last = event.node
            seq += 1
            yield event
        # The verdict of a trace belongs to its end. Other branches were cut, such as by compaction.
        if last != "root":
            result = _verdict(trace, episode)
            yield NodeScored(seq=seq, ts=end, node=last, name="reward", result=result)
            seq += 1
    yield RolloutFinished(seq=seq, ts=end, status="completed")


def _steps(trace: _Trace, prefix: str, seq: int) -> Iterator[StepFinished]:
    name = "agent" if trace.agent is None or not trace.agent.name else trace.agent.name
    usage = {call.node: call.usage for call in trace.calls if call.node is not None}
    results = {
        node.message.tool_call_id: node.message
        for node in trace.nodes
        if node.message.role == "tool"
    }
    parents = {node.parent for node in trace.nodes if node.sampled}
    above: list[tuple[str, tuple[str, ...]]] = []
    """For each message, the last step above, and the texts of the user since then."""
    for at, node in enumerate(trace.nodes):
        is_known = node.parent is not None and 0 <= node.parent < at
        step, texts = above[node.parent or 0] if is_known else ("root", ())
        message = node.message
        if not node.sampled:
            text = (message.text,) if message.role in {"system", "user"} else ()
            above.append((step, (*texts, *text)))
            continue
        ident = f"{prefix}.{at}"
        above.append((ident, ()))
        is_first = step == "root"
        yield StepFinished(
            seq=seq,
            ts=node.timestamp,
            node=ident,
            parent=step,
            label=f"{name}-{prefix}" if is_first else None,
            step=Step(
                id=ident,
                role=name,
                prompt="\n\n".join(texts) if texts else None,
                reasoning=message.reasoning_content or "",
                message=message.text,
                tool_calls=tuple(_tool_call(call) for call in message.tool_calls),
                observations=tuple(_observations(message, results)),
                usage=_usage(usage.get(at)),
                stop_reason=None if message.tool_calls or at in parents else _stop(trace),
                started_at=node.timestamp,
                finished_at=node.timestamp,
            ),
        )
        seq += 1


def _tool_call(call: _ToolCall) -> ToolCall:
    return ToolCall(
        id=call.id, title=call.name, name=call.name, raw_input=_arguments(call.arguments)
    )


def _arguments(text: str) -> object:
    """Return the arguments as the object that the text is, or else as the text."""
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return cast("object", found) if isinstance(found, dict) else text


def _observations(message: _Message, results: Mapping[str, _Message]) -> Iterator[Observation]:
    for call in message.tool_calls:
        if (found := results.get(call.id)) is not None:
            yield Observation(tool_call_id=call.id, status="completed", content=found.text)


def _usage(found: _Usage | None) -> Usage | None:
    if found is None:
        return None
    cached = found.cached_input_tokens or 0
    # Verifiers counts the tokens of the prompt without those that were cached.
    return Usage(
        input_tokens=found.prompt_tokens + cached,
        output_tokens=found.completion_tokens,
        cached_tokens=cached,
    )


def _stop(trace: _Trace) -> StopReason:
    return "max_tokens" if trace.stop_condition == "max_output_tokens" else "end_turn"


def _verdict(trace: _Trace, episode: _Episode) -> VerifyResult:
    """Return the verdict of the file, with the hash of the task that the agent had."""
    task = trace.task or episode.task
    meta = {"imported_from": "verifiers", TASK_HASH: task.hash}
    return _scores(trace, episode).model_copy(update={"meta": meta})


def _scores(trace: _Trace, episode: _Episode) -> VerifyResult:
    errors: Sequence[_Error] = (*episode.errors, *trace.errors)
    missing = [name for name, reward in trace.rewards.items() if reward is None]
    if not trace.ok or missing or not trace.rewards:
        error = f"{errors[-1].type}: {errors[-1].message}" if errors else f"no reward {missing}"
        return VerifyResult.unscored(f"the imported trace has no reward: {error:.1000}")
    known = {name: reward for name, reward in trace.rewards.items() if reward is not None}
    numbers = {
        name: value
        for name, value in trace.metrics.items()
        if value is not None and math.isfinite(value)
    }
    total = sum(reward.score * reward.weight for reward in known.values())
    if not abs(total) <= MAX_REWARD:
        return VerifyResult.unscored(f"the imported reward {total} is not a number in range")
    return VerifyResult(
        reward=total,
        items={**numbers, **{name: reward.score for name, reward in known.items()}},
    )
