"""Trainer records: the Verifiers `RolloutOutput` row and its JSON Lines file.

Source of the format: verifiers <= 0.3.1, `RolloutOutput` and `results.jsonl`.
There, an assistant's tool calls are a list of JSON strings with flat `id`, `name`
and `arguments`, and every metric appears again at the top level.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchflow_contracts import StoreError, VerifyResult

from .messages import Message

ToolCallFormat = Literal["verifiers", "openai"]

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
    }
)


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What an export wrote, and what it left out because it has no reward."""

    path: Path
    written: int
    unscored: int


def trajectory_to_verifiers_record(  # noqa: PLR0913 - the published signature
    *,
    task_id: str,
    messages: Sequence[Message],
    verify_result: VerifyResult,
    model: str | None = None,
    environment: str | None = None,
    example_id: int | None = None,
    is_truncated: bool = False,
    timing: Mapping[str, Any] | None = None,
    tool_calls: ToolCallFormat = "verifiers",
    info: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return one trainer record.

    `prompt` is everything before the first assistant message, `completion` the
    rest. `reward` is `None` for an unscored trajectory, and `is_completed` false.
    `example_id` defaults to a stable number derived from `task_id`, so that two
    tasks never share one by default. `tool_calls="openai"` keeps OpenAI's dicts,
    which prime-rl's SFT reader needs.
    """
    split = next((i for i, m in enumerate(messages) if m["role"] == "assistant"), len(messages))
    rendered = [_render(message, tool_calls) for message in messages]
    metrics = {k: float(v) for k, v in verify_result.items.items() if k not in _RESERVED}
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
        "error": verify_result.error,
        "timing": dict(timing or {}),
        "is_completed": scored,
        "is_truncated": is_truncated,
        "metrics": metrics,
        **metrics,
    }


def export_trajectories_to_jsonl(
    records: Iterable[Mapping[str, Any]], path: str | Path
) -> ExportReport:
    """Write trainer records, one JSON line each, replacing `path` at once.

    A record without a reward is counted and left out: a trainer must not learn
    from a rollout that nobody graded.

    Raises:
        StoreError: The file cannot be written, or a record holds no JSON.
    """
    target = Path(path)
    scratch = target.with_name(f".{target.name}.tmp")
    written = unscored = 0
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with scratch.open("w", encoding="utf-8") as file:
            for record in records:
                if record["reward"] is None:
                    unscored += 1
                    continue
                line = json.dumps(record, ensure_ascii=False, allow_nan=False)
                file.write(line + "\n")
                written += 1
        scratch.replace(target)
    except (OSError, ValueError, TypeError) as error:
        scratch.unlink(missing_ok=True)
        raise StoreError(f"cannot export to {str(target)!r}: {error}") from error
    return ExportReport(path=target, written=written, unscored=unscored)


def stable_example_id(task_id: str) -> int:
    """Return a number that is the same for a task in every run: 53 bits of its sha256."""
    return int.from_bytes(hashlib.sha256(task_id.encode()).digest()[:8]) >> 11


def _reward_metadata(result: VerifyResult) -> dict[str, Any]:
    return {
        "items": dict(result.items),
        "events": [event.model_dump(mode="json") for event in result.events],
        "error": result.error,
        "space": result.space,
        "granularity": result.granularity,
        "grading": result.grading,
    }


def _render(message: Message, tool_calls: ToolCallFormat) -> Message:
    if tool_calls == "openai" or "tool_calls" not in message:
        return dict(message)
    calls = [
        json.dumps(
            {
                "id": call["id"],
                "name": call["function"]["name"],
                "arguments": call["function"]["arguments"],
            },
            ensure_ascii=False,
        )
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}
