"""Facts of a job without `facts/`: from the records of its rollouts."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any, Final, cast

from benchflow_contracts import StoreError
from benchflow_store import RolloutRecord, latest_records, read_records

from .fact_files import TABLES, file_name
from .statistics.trials import Trial

_COUNTS: Final = ("steps", "asks", "leaves", "branches", "tampered")
_NUMBERS: Final = re.compile(r"[0-9a-f]{8,}|\d+")


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
    shown = sorted(latest.items(), key=lambda item: (places.get(item[0], len(slots)), item[0]))
    trials = [
        (_trial(job, at, slot, record, tries[slot]), record)
        for at, (slot, record) in (
            (places.get(slot, len(slots)), (slot, record)) for slot, record in shown
        )
    ]
    lines: dict[str, Iterable[Mapping[str, Any]]] = {
        "trials": [asdict(trial) for trial, _ in trials],
        "metrics_long": [row for trial, record in trials for row in _metrics(job, trial, record)],
        "events": [],
        "variant_snapshots": _variants(trials),
        "run_manifest": [_manifest(job, slots)],
    }
    for table in TABLES:
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in lines[table])
        (directory / file_name(table)).write_text(text, encoding="utf-8", errors="replace")


def _planned_slots(job: Path) -> list[str]:
    try:
        plan = cast("Mapping[str, Any]", json.loads((job / "job.json").read_bytes()))
        return list(plan["slots"])
    except FileNotFoundError:
        return []
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StoreError(f"damaged plan: {error}", where=str(job / "job.json")) from error


def _trial(job: Path, index: int, slot: str, record: RolloutRecord, tries: int) -> Trial:
    reward = record.counted_reward()
    error = record.error if reward is None else None
    seconds = _seconds(job / record.rollout_id / "timing.json")
    repeat = slot.rpartition("#")[2]
    return Trial(
        job=job.resolve().name,
        index=index,
        slot=slot,
        variant=f"{record.agent}/{record.model}" if record.model else record.agent,
        task=record.task_id,
        repeat=int(repeat) if repeat.isdecimal() else 0,
        attempt=tries,
        status="failed" if reward is None else "completed",
        reward=reward,
        scored=reward is not None,
        error_boundary=error.boundary if error else None,
        error_type=error.type if error else None,
        fingerprint=error_fingerprint(error.boundary, error.type, error.message) if error else None,
        rollout_id=record.rollout_id,
        started_at=record.finished_at - seconds if seconds is not None else None,
        finished_at=record.finished_at,
        seconds=seconds,
    )


def error_fingerprint(boundary: str, kind: str, message: str) -> str:
    """Return 12 hex digits that are equal for errors with one cause.

    Numbers and ids in the first line of the message do not count.
    """
    first = message.splitlines()[0] if message else ""
    text = "\0".join((boundary, kind, _NUMBERS.sub("#", first)))
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


def _seconds(path: Path) -> float | None:
    try:
        timing = cast("Mapping[str, Any]", json.loads(path.read_bytes()))
        return float(timing["total_sec"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _metrics(job: Path, trial: Trial, record: RolloutRecord) -> list[dict[str, Any]]:
    values = {name: float(getattr(record, name)) for name in _COUNTS}
    values |= {f"reward.{name}": value for name, value in (record.rewards or {}).items()}
    if trial.reward is not None:
        values["reward"] = trial.reward
    if record.value is not None:
        values |= {"value": record.value.mean, "value.n": float(record.value.n)}
    for space, signals in _signals(job / record.rollout_id / "rewards.jsonl").items():
        values[f"space.{space}"] = fmean(signals)
    place = {name: getattr(trial, name) for name in list(TABLES["metrics_long"])[:6]}
    return [{**place, "name": name, "value": value} for name, value in sorted(values.items())]


def _signals(path: Path) -> dict[str, list[float]]:
    """Return the reward signals of a rollout by space."""
    signals: dict[str, list[float]] = {}
    try:
        for line in path.read_bytes().splitlines():
            signal = cast("Mapping[str, Any]", json.loads(line))
            signals.setdefault(str(signal["space"]), []).append(float(signal["value"]))
    except (OSError, ValueError, LookupError, TypeError):
        return {}
    return signals


def _variants(trials: Iterable[tuple[Trial, RolloutRecord]]) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for trial, record in trials:
        config = {"agent": record.agent, "model": record.model, "sandbox": record.sandbox}
        digest = hashlib.sha256(json.dumps(config).encode()).hexdigest()
        row = {"job": trial.job, "variant": trial.variant, "digest": digest, "config": config}
        rows.setdefault(trial.variant, row)
    return list(rows.values())


def _manifest(job: Path, slots: list[str]) -> dict[str, Any]:
    return {
        "job": job.resolve().name,
        "design": "paired",
        "baseline": None,
        "slots": len(slots),
        "created_at": None,
    }
