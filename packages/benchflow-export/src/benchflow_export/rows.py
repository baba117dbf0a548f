"""Trainer records: the Verifiers `RolloutOutput` row and its JSON Lines file.

Source of the format: verifiers <= 0.3.1, `RolloutOutput` and `results.jsonl`. The
keys, their order and their types are those of that package, so that a line is what
it would have written itself; `tests/e2e/test_trainer_rows.py` holds us to it.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from benchflow_contracts import TAMPERED, StoreError, VerifyResult

from .messages import Message
from .timing import verifiers_timing
from .tool_calls import ToolCallFormat, render_tool_calls

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
    """What an export wrote, and what it left out because it has no reward."""

    path: Path
    written: int
    unscored: int
    tampered: int = 0
    """Of those: how many have a verdict that the agent may have steered."""


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

    `prompt` is everything before the first assistant message, `completion` the
    rest. `reward` is `None` for an unscored trajectory, and `is_completed` false.
    `example_id` defaults to a stable number derived from `task_id`, so that two
    tasks never share one by default. `timing` is the whole of `RolloutTiming`;
    without it, nothing was measured. `token_usage` is left out when nobody reported
    any. `tool_calls="openai"` keeps OpenAI's dicts, which prime-rl's SFT reader needs.
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
    """Write trainer records, one JSON line each, replacing `path` at once.

    A record without a reward is counted and left out: a trainer must not learn
    from a rollout that nobody graded.

    Raises:
        StoreError: The file cannot be written, or a record holds no JSON.
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


def write_json_lines(records: Iterable[Mapping[str, Any]], path: Path) -> int:
    """Write one JSON line each, replacing `path` at once; return how many.

    Raises:
        StoreError: The file cannot be written, or a record holds no JSON.
    """
    scratch = path.with_name(f".{path.name}.tmp")
    written = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch.open("w", encoding="utf-8") as file:
            for record in records:
                file.write(json.dumps(record, allow_nan=False) + "\n")
                written += 1
        scratch.replace(path)
    except (OSError, ValueError, TypeError) as error:
        scratch.unlink(missing_ok=True)
        raise StoreError(f"cannot export to {str(path)!r}: {error}") from error
    return written


def stable_example_id(task_id: str) -> int:
    """Return a number that is the same for a task in every run: 53 bits of its sha256."""
    return int.from_bytes(hashlib.sha256(task_id.encode()).digest()[:8]) >> 11


def _metrics(result: VerifyResult) -> dict[str, float]:
    """Return the items as metrics; a verdict without items is its own only metric.

    There is always one for a scored row, as in Verifiers, where each reward function
    is also a metric: a column of empty objects cannot be stored as Parquet.
    """
    items = {k: float(v) for k, v in result.items.items() if k not in _RESERVED}
    return items or ({} if result.reward is None else {"verdict": result.reward})


def _reward_metadata(result: VerifyResult) -> dict[str, Any]:
    # A column has one type in a data set, so what is free-form or may be an empty
    # object stays out: the events' `meta` is in the rollout's `rewards.jsonl`.
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
