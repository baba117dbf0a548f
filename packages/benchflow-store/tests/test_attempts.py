"""The attempts at a rollout that was cut short: which follows which, and what was paid."""

from pathlib import Path

import pytest
from benchflow_contracts import BeganFrom, ModelCall, Prior
from benchflow_kernel import CheckpointManifest
from benchflow_store import (
    StoredRollout,
    earlier_attempt,
    last_attempt,
    name_successor,
    prior_calls,
    read_began_from,
    sum_prior,
    write_prior_calls,
)


def attempt(directory: Path, *, began: bool = True) -> Path:
    directory.mkdir(parents=True)
    if began:
        (directory / "events.jsonl").write_text("")
    return directory


def call(node: str, number: int, cost: float | None = None) -> ModelCall:
    return ModelCall(
        id=f"{node}.{number:06d}",
        node=node,
        api="openai-chat",
        request={"number": number},
        status=200,
        cost_usd=cost,
        started_at=float(number),
        finished_at=float(number),
    )


def manifest(*model_calls: tuple[str, ...]) -> CheckpointManifest:
    steps = [
        {"id": f"s{at}", "model_calls": ids, "started_at": 0, "finished_at": 0}
        for at, ids in enumerate(model_calls)
    ]
    return CheckpointManifest.model_validate(
        {
            "rollout_id": "r1",
            "task_id": "demo",
            "task_digest": "sha256:0",
            "node": "n1",
            "turn": 0,
            "checkpoint_turn": 0,
            "fidelity": "state",
            "ref": "r",
            "layers": {},
            "image": {
                "provider": "fake",
                "level": "filesystem",
                "consistency": "instant",
                "ref": "r",
                "digest": "d",
                "bytes": 1,
            },
            "schedule": [],
            "history": [{"step": step} for step in steps],
            "taken_at": 0,
        }
    )


def test_the_last_attempt_that_began_is_found_also_in_a_moved_job(tmp_path: Path) -> None:
    first, second, third = (attempt(tmp_path / "job" / name) for name in ("r1", "r2", "r3"))
    assert last_attempt(first) == first
    name_successor(first, second)
    name_successor(second, third)
    assert last_attempt(first) == third
    name_successor(third, attempt(tmp_path / "job" / "r4", began=False))
    assert last_attempt(first) == third
    moved = (tmp_path / "job").rename(tmp_path / "moved")
    assert last_attempt(moved / "r1") == moved / "r3"


@pytest.mark.parametrize("content", ['{"rollout": ', "[]", '{"rollout": "r9", "directory": "/r9"}'])
def test_a_torn_or_stale_name_of_an_attempt_is_ignored(tmp_path: Path, content: str) -> None:
    first = attempt(tmp_path / "r1")
    (first / "resumed.json").write_text(content)
    assert last_attempt(first) == first


def test_attempts_that_name_each_other_end_the_search(tmp_path: Path) -> None:
    first, second = attempt(tmp_path / "r1"), attempt(tmp_path / "r2")
    name_successor(first, second)
    name_successor(second, first)
    assert last_attempt(first) in {first, second}


def test_the_earlier_attempt_is_the_one_beside_or_the_recorded_one(tmp_path: Path) -> None:
    second = attempt(tmp_path / "job" / "r2")
    began = BeganFrom(point="checkpoint", rollout="r1", directory="/elsewhere/r1")
    assert earlier_attempt(second, BeganFrom()) is None
    assert earlier_attempt(second, began) == Path("/elsewhere/r1")
    first = attempt(tmp_path / "job" / "r1")
    assert earlier_attempt(second, began) == first


def test_all_calls_up_to_the_last_one_of_a_step_are_carried(tmp_path: Path) -> None:
    recorded = {c.id: c for c in [*(call("n0", at) for at in range(1, 5)), call("n7", 1)]}
    saved = manifest(("n0.000001",), ("n0.000003", "gone"))
    carried = prior_calls(saved, recorded)
    assert [c.id for c in carried] == ["n0.000001", "n0.000002", "n0.000003"]
    directory = tmp_path / "r2"
    write_prior_calls(directory, carried)
    assert list(StoredRollout(directory).calls.values()) == list(carried)
    assert (directory / "model" / "r2" / "n0.jsonl").stat().st_mode & 0o777 == 0o600


def test_the_cost_of_the_part_before_is_the_sum_of_what_is_known() -> None:
    recorded = {c.id: c for c in (call("n0", 1, 0.5), call("n0", 2), call("n0", 3, 0.25))}
    saved = manifest(("n0.000001", "n0.000002"), ("n0.000003",))
    assert sum_prior(saved, recorded) == Prior(steps=2, model_calls=3, cost_usd=0.75)
    assert sum_prior(saved, {}).cost_usd is None


def test_a_branch_began_from_its_checkpoint_and_another_rollout_from_the_start() -> None:
    origin = {"rollout_id": "r1", "node": "n4", "ref": "x"}
    began = read_began_from({"continued_from": origin})
    assert (began.point, began.rollout, began.checkpoint) == ("checkpoint", "r1", "n4")
    assert read_began_from({}) == BeganFrom()
