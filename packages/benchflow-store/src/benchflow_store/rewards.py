"""The lines of `rewards.jsonl`."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchflow_contracts import Granularity, RewardEvent, Step, VerifyResult


def rewards_jsonl(
    node_id: str,
    results: Mapping[str, VerifyResult],
    *,
    steps: Sequence[Step] = (),
    ts: float | None = None,
) -> list[dict[str, Any]]:
    """Return the records of one node: each verdict, then its events.

    Every record has the keys `ts` (seconds since the epoch), `type` (`terminal`
    or `process`), `source`, `value` (`None` when unscored), `tag`, `step_index`
    (an index into `steps`, or `None`), `space`, `granularity` and `meta` (with at
    least `node`).
    """
    now = time.time() if ts is None else ts
    index = {step.id: position for position, step in enumerate(steps)}
    lines: list[dict[str, Any]] = []
    for name, result in results.items():
        lines.append(_verdict(now, node_id, name, result))
        lines.extend(_event(now, node_id, name, event, index) for event in result.events)
    return lines


def _type(granularity: Granularity) -> str:
    return "terminal" if granularity == "terminal" else "process"


def _verdict(ts: float, node_id: str, name: str, result: VerifyResult) -> dict[str, Any]:
    return {
        "ts": ts,
        "type": _type(result.granularity),
        "source": name,
        "value": result.reward,
        "tag": "verdict",
        "step_index": None,
        "space": result.space,
        "granularity": result.granularity,
        "meta": {
            **result.meta,
            "node": node_id,
            "grading": result.grading,
            "items": dict(result.items),
            "error": result.error,
        },
    }


def _event(
    ts: float, node_id: str, name: str, event: RewardEvent, index: Mapping[str, int]
) -> dict[str, Any]:
    step = None if event.step_id is None else index.get(event.step_id)
    return {
        "ts": ts,
        "type": _type(event.granularity),
        "source": event.source,
        "value": event.value,
        "tag": event.tag,
        "step_index": step,
        "space": event.space,
        "granularity": event.granularity,
        "meta": {**event.meta, "node": node_id, "reward": name, "step_id": event.step_id},
    }
