"""A group reward scores the rollouts of a job together, and a lost member is named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchflow_engine.scaffold import write_task
from benchflow_store import read_groups

MINE = '''
import os
from pathlib import Path

from benchflow_contracts import RewardError, VerifyResult


class OneFails:
    """0.5 for each rollout but the first one, which has no score."""

    name = "reward"
    needs_processes = False

    async def score(self, node, evidence):
        mark = Path("failed-once")
        if not mark.exists():
            mark.touch()
            raise RewardError("the meter is broken")
        return VerifyResult(reward=0.5)


def rewards(task, **_):
    return [OneFails()]


class Places:
    """The place of each leaf."""

    name = "reward"

    async def score_group(self, task, leaves):
        return [VerifyResult(reward=float(at)) for at, _ in enumerate(leaves, 1)]


class AllPlaces(Places):
    needs_all_members = True
'''


def rows_of(path: Path) -> list[float]:
    return [json.loads(line)["reward"] for line in path.read_text().splitlines()]


def test_the_rollouts_of_a_job_are_scored_together(
    tmp_path: Path, bench: Callable[..., Any]
) -> None:
    write_task(tmp_path / "task")
    (tmp_path / "mine.py").write_text(MINE)
    create = ("eval", "create", "-p", "task", "--agent", "nop", "--repeats", "3", "--retries", "0")
    paths = ("--reward-import-path", "mine:rewards", "--group-reward-import-path")
    job = tmp_path / "jobs" / "j"
    bench(*create, *paths, "mine:Places", "--job-name", "j", code=1)
    (group,) = read_groups(job)
    assert [each.result.reward for each in group.leaves] == [1, 2]
    (lost,) = group.lost
    assert "the meter is broken" in lost.reason
    assert rows_of(job / "verifiers.jsonl") == [1, 2]
    bench("eval", "export", "j", "--output", "rows.jsonl", "--format", "verifiers")
    assert rows_of(tmp_path / "rows.jsonl") == [1, 2]
    records = [json.loads(path.read_text()) for path in job.glob("*/result.json")]
    assert sorted(r["reward"] for r in records if r["reward"] is not None) == [0.5, 0.5]
    # The resumed job runs the lost slot again, and the group is then whole.
    bench(*create, *paths, "mine:Places", "--job-name", "j")
    (group,) = read_groups(job)
    assert len((job / "group-rewards.jsonl").read_text().splitlines()) == 2
    assert [each.result.reward for each in group.leaves] == [1, 2, 3]
    assert group.lost == ()
    table = [line.split() for line in bench("eval", "show", "j").splitlines()]
    names = next(words for words in table if words[:2] == ["rollout", "task"])
    # The column "group reward" is after the reward of each rollout.
    assert names[2:5] == ["reward", "group", "reward"]
    rows = [words[2:4] for words in table if "task" in words[1:2] and words != names]
    assert sorted(rows) == [["0.5", "1"], ["0.5", "2"], ["0.5", "3"]]
    # Nothing has changed, so nothing is scored again.
    bench(*create, *paths, "mine:Places", "--job-name", "j")
    assert len((job / "group-rewards.jsonl").read_text().splitlines()) == 2

    (tmp_path / "failed-once").unlink()
    bench(*create, *paths, "mine:AllPlaces", "--job-name", "all", code=1)
    (group,) = read_groups(tmp_path / "jobs" / "all")
    assert {each.result.error_type for each in group.leaves} == {"GroupIncompleteError"}
    assert rows_of(tmp_path / "jobs" / "all" / "verifiers.jsonl") == []


def test_one_rollout_has_no_group(tmp_path: Path, bench: Callable[..., Any]) -> None:
    write_task(tmp_path / "task")
    (tmp_path / "config.toml").write_text('[reward]\ngroup_import_path = "mine:Places"\n')
    bench("run", "task", "--config", "config.toml", "--agent", "nop", code=2)
    assert not (tmp_path / "jobs").exists()
