"""Facts of a job without `facts/`: from the records of its rollouts."""

import hashlib
import json
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any, Final, cast

from benchflow_contracts import RolloutRecord, StoreError
from benchflow_store import error_fingerprint, latest_records, read_records

from .fact_files import TABLES, file_name

_COUNTS: Final = ("steps", "asks", "leaves", "scored", "branches", "tampered")


def project_records(job: Path, directory: Path) -> None:
    """Write the facts of `job` into `directory`. A variant is an agent with its model.

    There are no events. Tokens and cost are not known.

    Raises:
        StoreError: `job` has no rollout, or a record is damaged.
    """
    latest = latest_records(job)
    if not latest and not (job / "job.json").exists():
        raise StoreError(
            f"{str(job)!r} is not a job directory: it has no job.json and no rollout",
            hint="list jobs with `bench eval list`",
        )
    slots = _planned_slots(job) or sorted(latest)
    tries = Counter(record.slot or record.rollout_id for record in read_records(job))
    places = {slot: at for at, slot in enumerate(slots)}
    trials: list[dict[str, Any]] = []
    metrics: list[dict[str, Any]] = []
    variants: dict[str, dict[str, Any]] = {}
    for slot in sorted(latest, key=lambda slot: (places.get(slot, len(slots)), slot)):
        record = latest[slot]
        if record.status == "cancelled":
            # A resume repeats it: the slot is not resolved.
            continue
        rollout = job / record.rollout_id
        place = _place(places.get(slot, len(slots)), slot, record)
        trials.append({**place, **_outcome(rollout, record, tries[slot])})
        metrics += [{**place, **metric} for metric in _metrics(rollout, record)]
        variants.setdefault(place["variant"], _snapshot(place["variant"], record))
    lines: dict[str, list[dict[str, Any]]] = {
        "trials": trials,
        "metrics_long": metrics,
        "variant_snapshots": list(variants.values()),
        "run_manifest": [{"slots": len(slots)}],
    }
    for table in TABLES:
        text = "".join(json.dumps(row) + "\n" for row in lines.get(table, []))
        (directory / file_name(table)).write_text(text, encoding="utf-8")


def _planned_slots(job: Path) -> list[str]:
    try:
        plan = cast("dict[str, Any]", json.loads((job / "job.json").read_bytes()))
        return list(plan["slots"])
    except FileNotFoundError:
        return []
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StoreError(f"damaged plan: {error}", where=str(job / "job.json")) from error


def _place(index: int, slot: str, record: RolloutRecord) -> dict[str, Any]:
    repeat = slot.rpartition("#")[2]
    return {
        "index": index,
        "slot": slot,
        "variant": f"{record.agent}/{record.model}" if record.model else record.agent,
        "task": record.task_id,
        "repeat": int(repeat) if repeat.isdecimal() else 0,
    }


def _outcome(rollout: Path, record: RolloutRecord, tries: int) -> dict[str, Any]:
    reward = record.counted_reward()
    error = record.error if reward is None else None
    seconds = _seconds(rollout / "timing.json")
    return {
        "attempt": record.attempt or tries,
        "status": "failed" if reward is None else "completed",
        "reward": reward,
        "scored": reward is not None,
        "value": record.value and record.value.model_dump(),
        "leaves": record.leaves,
        "tampered": record.tampered,
        "error_boundary": error and error.boundary,
        "error_type": error and error.type,
        "fingerprint": error and error_fingerprint(error),
        "rollout_id": record.rollout_id,
        "epoch": record.epoch,
        "started_at": None if seconds is None else record.finished_at - seconds,
        "finished_at": record.finished_at,
        "seconds": seconds,
    }


def _seconds(path: Path) -> float | None:
    try:
        timing = cast("dict[str, Any]", json.loads(path.read_bytes()))
        return float(timing["total_sec"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _metrics(rollout: Path, record: RolloutRecord) -> list[dict[str, Any]]:
    values = {name: float(getattr(record, name)) for name in _COUNTS}
    values |= {f"reward.{name}": value for name, value in (record.rewards or {}).items()}
    if record.reward is not None:
        values["reward"] = record.reward
    for space, signals in _signals(rollout / "rewards.jsonl").items():
        values[f"space.{space}"] = fmean(signals)
    return [{"name": name, "value": value} for name, value in sorted(values.items())]


def _signals(path: Path) -> dict[str, list[float]]:
    """Return the reward signals of a rollout by space."""
    signals: dict[str, list[float]] = {}
    try:
        for line in path.read_bytes().splitlines():
            signal = cast("dict[str, Any]", json.loads(line))
            signals.setdefault(str(signal["space"]), []).append(float(signal["value"]))
    except (OSError, ValueError, LookupError, TypeError):
        return {}
    return signals


def _snapshot(variant: str, record: RolloutRecord) -> dict[str, Any]:
    config = {"agent": record.agent, "model": record.model, "sandbox": record.sandbox}
    digest = hashlib.sha256(json.dumps(config).encode()).hexdigest()
    return {"variant": variant, "digest": digest, "config": config}
