"""A task of two steps, run by `bench` in real boxes, graded in each isolation, and forked."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

TASK = Path(__file__).parents[2] / "benchmarks" / "steps" / "sorted-words"

ASKS = """
[[turn]]
[[turn.do]]
run = "sort /workspace/words.txt /workspace/more.txt > /workspace/all.txt"
[[turn.do]]
ask = "Keep the old list?"
id = "old"
options = [{ id = "no", label = "Replace it" }, { id = "yes", label = "Keep it" }]
[[turn.do]]
when = { old = "no" }
run = "mv /workspace/all.txt /workspace/words.txt"
[[turn.do]]
say = "Done."
"""


def nodes_of(record: dict[str, Any], home: Path) -> list[dict[str, Any]]:
    """The nodes of a rollout's tree."""
    file = home / record["rollout_id"] / "tree.json"
    found: list[dict[str, Any]] = json.loads(file.read_text())["nodes"]
    return found


def verdicts(nodes: list[dict[str, Any]]) -> list[tuple[str, float | None]]:
    """Each verdict of each node, in the order of the tree."""
    return [(name, r["reward"]) for node in nodes for name, r in node["results"].items()]


@pytest.mark.parametrize("isolation", ["hermetic", "twin", "shared"])
def test_the_oracle_earns_all_of_every_step_and_nothing_earns_nothing(
    bench: Any, tmp_path: Path, isolation: str
) -> None:
    options = ("--isolation", isolation, "--jobs-dir", tmp_path / "jobs", "--json")
    record = bench("run", TASK, "--agent", "oracle", *options)
    assert record["reward"] == 1.0
    assert record["grading"] == isolation
    nodes = nodes_of(record, tmp_path / "jobs")
    assert verdicts(nodes) == [("sort/reward", 1.0), ("merge/reward", 1.0), ("reward", 1.0)]
    logs = tmp_path / "jobs" / record["rollout_id"] / "steps"
    assert (logs / "merge" / "verifier" / "reward.txt").read_text() == "1\n"
    record = bench("run", TASK, "--agent", "nop", *options)
    assert record["reward"] == 0.0
    nodes = nodes_of(record, tmp_path / "jobs")
    assert verdicts(nodes) == [("sort/reward", 0.0), ("reward", 0.0)]
    assert "below min_reward" in nodes[-1]["results"]["reward"]["meta"]["stopped"]


@pytest.mark.parametrize("isolation", ["hermetic", "twin"])
def test_children_of_the_second_step_share_the_verdict_on_the_first(
    bench: Any, tmp_path: Path, isolation: str
) -> None:
    forks = ("--branch", "group", "--branch-at", 1, "--branch-n", 2, "--keep", "forks")
    options = ("--isolation", isolation, "--jobs-dir", tmp_path, "--json")
    record = bench("run", TASK, "--agent", "oracle", *forks, *options)
    assert (record["reward"], record["scored"]) == (1.0, 2)
    found = sorted(verdicts(nodes_of(record, tmp_path)))
    assert found == [*[("merge/reward", 1.0)] * 2, *[("reward", 1.0)] * 2, ("sort/reward", 1.0)]


@pytest.mark.slow
def test_a_question_of_the_second_step_forks_the_live_work_of_both(
    bench: Any, tmp_path: Path
) -> None:
    task = shutil.copytree(TASK, tmp_path / "task")
    (task / "steps" / "merge" / "solution" / "script.toml").write_text(ASKS)
    forks = ("--branch", "ask-user", "--branch-require", "live")
    options = (*forks, "--jobs-dir", tmp_path, "--json")
    record = bench("run", task, "--agent", "oracle", *options)
    # The task's user gives the first answer.
    assert (record["leaves"], record["scored"], record["reward"]) == (2, 2, 1.0)
    found = sorted(verdicts(nodes_of(record, tmp_path)))
    assert found == [
        *[("merge/reward", 0.0), ("merge/reward", 1.0)],
        *[("reward", 0.5), ("reward", 1.0)],
        ("sort/reward", 1.0),
    ]


def test_a_kept_step_is_gone_on_from_with_the_verdict_on_the_one_before(
    bench: Any, tmp_path: Path
) -> None:
    options = ("--jobs-dir", tmp_path, "--json")
    record = bench("run", TASK, "--agent", "oracle", "--keep", "all", *options)
    kept = bench("checkpoint", "list", "--jobs-dir", tmp_path, "--json")
    ends = [node["id"] for node in nodes_of(record, tmp_path) if "sort/reward" in node["results"]]
    (node,) = {each["node"] for each in kept} & set(ends)
    done = bench(
        "rollout", "branch", record["rollout_id"], "--at", node, "--agent", "nop", *options
    )
    (again,) = done["rollouts"]
    found = verdicts(nodes_of(again, tmp_path))
    assert found == [("sort/reward", 1.0), ("merge/reward", 0.0), ("reward", 0.5)]
