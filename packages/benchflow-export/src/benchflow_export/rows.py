"""Trainer records: the Verifiers `RolloutOutput` row and its JSON Lines file.

Source of the format: verifiers <= 0.3.1, `RolloutOutput` and `results.jsonl`. The
keys, their order and their types are those of that package, so a line is equal to a line of
that package. `tests/e2e/test_trainer_rows.py` checks this.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast

from benchflow_contracts import TAMPERED, RolloutNode, StoreError, VerifyResult
from pydantic_core import PydanticSerializationError, to_json

from .messages import Message

ToolCallFormat = Literal["verifiers", "openai"]
"""Verifiers rows have JSON strings. SFT readers such as prime-rl's need OpenAI's dicts."""
_LINES: Final = json.JSONEncoder(allow_nan=False)
_COMPACT: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]")
_RESERVED = frozenset(
    {
        "example_id",
        "prompt",
        "completion",
        "answer",
        "info",
        "reward",
        "error",
        "timing",
        "is_completed",
        "is_truncated",
        "stop_condition",
        "metrics",
        "tool_defs",
        "token_usage",
        "trajectory",
        "error_chain",
        "long_error_chain",
    }
)


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The number of written rows, and of rows without a reward, which were left out."""

    path: Path
    written: int
    unscored: int
    tampered: int = 0
    """The part of `unscored` whose verdict the agent may have steered."""


def trajectory_to_verifiers_record(  # noqa: PLR0913 - the published signature
    *,
    task_id: str,
    messages: Sequence[Message],
    verify_result: VerifyResult,
    model: str | None = None,
    environment: str | None = None,
    example_id: int | None = None,
    is_truncated: bool = False,
    stop_condition: str | None = None,
    timing: Mapping[str, Any] | None = None,
    token_usage: Mapping[str, float] | None = None,
    tool_calls: ToolCallFormat = "verifiers",
    info: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return one trainer record.

    `prompt` has the messages before the first assistant message; `completion` has the rest.
    An unscored trajectory has `reward` `None`, and `is_completed` is false. `example_id`
    defaults to a stable number derived from `task_id`. `timing` is a whole `RolloutTiming`;
    without it, all times are 0. Without `token_usage`, the record has no such key.
    `tool_calls="openai"` keeps OpenAI's dicts, which prime-rl's SFT reader needs.
    """
    split = next((i for i, m in enumerate(messages) if m["role"] == "assistant"), len(messages))
    rendered = [render_tool_calls(message, tool_calls) for message in messages]
    metrics = _metrics(verify_result)
    error = _error_data(verify_result.error)
    scored = verify_result.reward is not None
    return {
        "example_id": stable_example_id(task_id) if example_id is None else example_id,
        "prompt": rendered[:split],
        "completion": rendered[split:],
        "info": {
            "task_id": task_id,
            "environment": environment,
            "model": model,
            "reward_valid": scored,
            "reward_metadata": _reward_metadata(verify_result),
            **(info or {}),
        },
        "reward": verify_result.reward,
        "error": error,
        "timing": dict(timing or verifiers_timing()),
        "is_completed": scored,
        "is_truncated": is_truncated,
        "stop_condition": stop_condition,
        "metrics": metrics,
        "tool_defs": None,
        **({} if token_usage is None else {"token_usage": dict(token_usage)}),
        **_error_columns(error),
        **metrics,
    }


def export_trajectories_to_jsonl(
    records: Iterable[Mapping[str, Any]], path: str | Path
) -> ExportReport:
    """Write trainer records to `path`, one JSON line each. Replace the file atomically.

    A record without a reward is counted and left out: a trainer must not learn from an
    ungraded rollout.

    Raises:
        StoreError: The file cannot be written, or a record is not JSON.
    """
    target = Path(path)
    unscored = tampered = 0

    def scored() -> Iterable[Mapping[str, Any]]:
        nonlocal unscored, tampered
        for record in records:
            if record["reward"] is None:
                unscored += 1
                error = cast("Mapping[str, str] | None", record["error"])
                tampered += error is not None and error["message"].startswith(TAMPERED)
            else:
                yield record

    written = write_json_lines(scored(), target)
    return ExportReport(path=target, written=written, unscored=unscored, tampered=tampered)


def write_json_lines(
    records: Iterable[Mapping[str, Any]], path: Path, *, is_compact: bool = False
) -> int:
    """Write one JSON line per record and return their number. Replace the file atomically.

    Lines are those of `json.dumps`, as verifiers writes them. Compact ones have no spaces, and
    cost a third of the time.

    Raises:
        StoreError: The file cannot be written, or a record is not JSON.
    """
    directory, name = os.path.split(path)
    scratch = f"{directory}/.{name}.tmp"
    written = 0
    encode = _compact if is_compact else _LINES.encode
    try:
        os.makedirs(directory, exist_ok=True)  # noqa: PTH103 - each rollout writes such a file
        with open(scratch, "wb") as file:  # noqa: PTH123
            for record in records:
                file.write(encode(record).encode() + b"\n")
                written += 1
        os.replace(scratch, path)  # noqa: PTH105
    except (OSError, ValueError, TypeError) as error:
        Path(scratch).unlink(missing_ok=True)
        raise StoreError(f"cannot export to {str(path)!r}: {error}") from error
    return written


def _compact(record: Mapping[str, Any]) -> str:
    """Return a record as ASCII: some readers split a line at characters such as U+2028.

    Raises:
        ValueError: A number is not finite.
        TypeError: A value is not JSON.
    """
    try:
        text = to_json(record).decode()
    except PydanticSerializationError:  # Half of a surrogate pair, or not JSON.
        return _COMPACT.encode(record)
    if "NaN" in text or "Infinity" in text:
        return _COMPACT.encode(record)
    return text if text.isascii() else _NOT_ASCII.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1]


def is_tampered(leaf: RolloutNode) -> bool:
    """Return whether the leaf has a verdict that the agent may have steered."""
    verdict = leaf.results.get("reward")
    return verdict is not None and verdict.reward is not None and leaf.reward is None


def stable_example_id(task_id: str) -> int:
    """Return the first 53 bits of the sha256 of `task_id`: the same number in every run."""
    return int.from_bytes(hashlib.sha256(task_id.encode()).digest()[:8]) >> 11


def _metrics(result: VerifyResult) -> dict[str, float]:
    """Return the items as metrics. A verdict without items is the only metric.

    A scored row always has a metric, as in Verifiers, where each reward function is also a
    metric. Parquet cannot store a column of empty objects.
    """
    items = {k: float(v) for k, v in result.items.items() if k not in _RESERVED}
    return items or ({} if result.reward is None else {"verdict": result.reward})


def _reward_metadata(result: VerifyResult) -> dict[str, Any]:
    # A column of a data set has one type, so free-form objects and empty objects are left out.
    # The rollout's `rewards.jsonl` has the `meta` of the events.
    return {
        "items": dict(result.items) or None,
        "events": [event.model_dump(mode="json", exclude={"meta"}) for event in result.events],
        "error": result.error,
        "space": result.space,
        "granularity": result.granularity,
        "grading": result.grading,
        "integrity": result.integrity,
    }


def _error_data(message: str | None) -> dict[str, str] | None:
    if message is None:
        return None
    return {
        "error": "RewardError",
        "message": message,
        "error_chain_repr": f"RewardError({message!r})",
        "error_chain_str": "RewardError",
    }


def _error_columns(error: Mapping[str, str] | None) -> dict[str, str]:
    if error is None:
        return {}
    return {
        "error_chain": error["error_chain_repr"],
        "long_error_chain": error["error_chain_str"],
    }


def render_tool_calls(message: Message, tool_calls: ToolCallFormat) -> Message:
    """Return a copy of an OpenAI message with its tool calls in the format `tool_calls`.

    A Verifiers assistant turn has the keys `role`, `content`, `tool_calls` and
    `reasoning_content`, in this order; a call is the JSON text of a flat object.
    """
    if tool_calls == "openai" or "tool_calls" not in message:
        return dict(message)
    calls = [
        json.dumps(
            {
                "id": call["id"],
                "name": call["function"]["name"],
                "arguments": call["function"]["arguments"],
            }
        )
        for call in message["tool_calls"]
    ]
    rendered = {"role": message["role"], "content": message["content"], "tool_calls": calls}
    return {**rendered, **{k: v for k, v in message.items() if k not in rendered}}


class Span(NamedTuple):
    """Seconds since the epoch. A span that ends at 0 was not measured, and its duration is 0."""

    start: float = 0.0
    end: float = 0.0

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.end - self.start if self.end > 0 else 0.0


UNMEASURED = Span()


def verifiers_timing(
    *,
    start_time: float = 0.0,
    setup: Span = UNMEASURED,
    generation: Span = UNMEASURED,
    scoring: Span = UNMEASURED,
) -> dict[str, Any]:
    """Return every key of the shape, so that the rows of a file have one schema.

    As in Verifiers, `generation` includes `setup`. An ACP agent does not separate the time of
    its model from the time of its tools: `model` and `env` have no spans, and their time counts
    as `overhead`.
    """
    total = scoring.end - generation.start if scoring.end > 0 else 0.0
    return {
        "start_time": start_time,
        "setup": _span(setup),
        "generation": _span(generation),
        "scoring": _span(scoring),
        "model": {"spans": [], "duration": 0.0},
        "env": {"spans": [], "duration": 0.0},
        "total": total,
        "overhead": total - setup.duration - scoring.duration,
    }


def _span(span: Span) -> dict[str, float]:
    return {"start": span.start, "end": span.end, "duration": span.duration}
