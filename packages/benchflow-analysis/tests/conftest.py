"""Job directories: with facts, and with records of rollouts alone."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import NodeError, RolloutRecord

Rewards = Mapping[str, Mapping[str, Sequence[float | None]]]
"""By variant and task: one for each repeat."""


def jsonl(rows: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def write_facts(tmp_path: Path) -> Callable[..., Path]:
    """Write a job with facts, as the store writes them, and return its directory."""

    def write(name: str, rewards: Rewards, **manifest: Any) -> Path:
        job = tmp_path / "jobs" / name
        (job / "facts").mkdir(parents=True)
        trials, metrics, events = [], [], []
        for variant, tasks in rewards.items():
            for task, values in tasks.items():
                for repeat, reward in enumerate(values):
                    place = {
                        "index": len(trials),
                        "slot": f"{variant}/{task}#{repeat}",
                        "variant": variant,
                        "task": task,
                        "repeat": repeat,
                    }
                    trials.append(
                        {
                            **place,
                            "attempt": 1,
                            "status": "failed" if reward is None else "completed",
                            "reward": reward,
                            "scored": reward is not None,
                            "value": None if reward is None else {"mean": reward, "n": 3},
                            "leaves": 3,
                            "tampered": 0,
                            "error_boundary": "sandbox" if reward is None else None,
                            "error_type": "CapacityError" if reward is None else None,
                            "fingerprint": "ab12" if reward is None else None,
                            "tokens_in": 100,
                            "tokens_out": 10,
                            "cost_usd": 0.5,
                            "rollout_id": f"r{len(trials)}",
                            "epoch": 1,
                            "started_at": 1.0 + len(trials),
                            "finished_at": 3.0 + len(trials),
                            "seconds": 2.0,
                        }
                    )
                    metrics.append({**place, "name": "steps", "value": 3.0})
                    events.append(
                        {
                            **{key: place[key] for key in ("index", "slot")},
                            "attempt": 1,
                            "seq": 0,
                            "kind": "step",
                            "data": {"n": len(trials)},
                        }
                    )
        snapshots = [
            {"variant": variant, "digest": "d", "config": {"agent": variant}} for variant in rewards
        ]
        head = {"job": name, "design": "paired", "baseline": None, "slots": len(trials)}
        head |= {"created_at": 1.0, **manifest}
        facts = job / "facts"
        (facts / "trials.jsonl").write_text(jsonl(trials))
        (facts / "metrics_long.jsonl").write_text(jsonl(metrics))
        (facts / "events.jsonl").write_text(jsonl(events))
        (facts / "variant_snapshots.jsonl").write_text(jsonl(snapshots))
        (facts / "run_manifest.json").write_text(json.dumps(head, indent=2) + "\n")
        (job / "job.json").write_text("{}")
        return job

    return write


@pytest.fixture
def write_records(tmp_path: Path) -> Callable[..., Path]:
    """Write a job of version 0.8 with the records of its rollouts, and return its directory."""

    def write(name: str, rewards: Mapping[str, Sequence[float | None]], **fields: Any) -> Path:
        job = tmp_path / "jobs" / name
        job.mkdir(parents=True)
        repeats = max(map(len, rewards.values()))
        slots = {f"{task}#{repeat}": "d" for repeat in range(repeats) for task in rewards}
        (job / "job.json").write_text(json.dumps({"slots": slots, "options": {}}))
        for task, values in rewards.items():
            for repeat, reward in enumerate(values):
                error = NodeError(boundary="sandbox", type="CapacityError", message="out of 12 GB")
                record = RolloutRecord(
                    **{
                        "rollout_id": f"{task}__{repeat}",
                        "task_id": task,
                        "task_digest": "d",
                        "agent": "oracle",
                        "model": None,
                        "sandbox": "local",
                        "status": "failed" if reward is None else "completed",
                        "reward": reward,
                        "error": error if reward is None else None,
                        "slot": f"{task}#{repeat}",
                        "finished_at": 100.0 + repeat,
                        **fields,
                    }
                )
                rollout = job / record.rollout_id
                rollout.mkdir()
                (rollout / "result.json").write_text(record.model_dump_json())
                (rollout / "timing.json").write_text(json.dumps({"total_sec": 4.0}))
                signals = [{"space": "output", "value": reward}, {"space": "action", "value": 0.5}]
                (rollout / "rewards.jsonl").write_text(jsonl(signals if reward is not None else []))
        return job

    return write
