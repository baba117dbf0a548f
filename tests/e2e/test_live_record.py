"""The record of a real rollout: states to compare, and what was open when its runner died."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchflow_store import RolloutProgress, StoredRollout, writer_of

RUNNER = Path(__file__).with_name("killed_runner.py")
TASK = Path(__file__).parents[2] / "benchmarks" / "clawsbench" / "tasks" / "book-the-review-room"


def test_root_fork_and_leaves_of_the_demo_have_states_that_can_be_compared(
    demo: dict[str, Any], bench: Any
) -> None:
    stored = StoredRollout(demo["directory"])
    tree = stored.tree
    (fork,) = (node for node in tree.nodes if node.branch)
    leaves = tree.leaves
    having = {node.id for node in tree.nodes if node.state_ref}
    assert having == {tree.root.id, fork.id, *(leaf.id for leaf in leaves)}
    assert all(stored.state(tree.index[node]) is not None for node in having)
    assert len(list((demo["directory"] / "states").rglob("*.json"))) == 4, "root and fork are equal"

    def diff(a: str, b: str) -> dict[str, Any]:
        shown: dict[str, Any] = bench("rollout", "diff", f"{demo['directory']}:{a}", b, "--json")
        return shown

    to_fork = diff(tree.root.id, fork.id)
    assert to_fork["databases"] == {}
    assert to_fork["files"] == {"added": [], "removed": [], "changed": []}
    to_leaves = [json.dumps(diff(fork.id, leaf.id)["databases"]) for leaf in leaves]
    assert all("room-maple" in changes for changes in to_leaves)
    assert len(set(to_leaves)) == 3, "each answer changed other rows"
    between = diff(leaves[0].id, leaves[1].id)["databases"]
    (table,) = (table for tables in between.values() for table in tables.values())
    assert (len(table["removed"]), len(table["added"])) == (1, 1)


def test_a_killed_runner_leaves_a_log_that_says_what_was_open(tmp_path: Path, bench: Any) -> None:
    flags = {"agent": "oracle"}
    runner = subprocess.Popen(
        [sys.executable, RUNNER, TASK, tmp_path / "jobs", "question_opened:", json.dumps(flags)],
        cwd=tmp_path,
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    assert runner.wait(timeout=240) == -signal.SIGKILL
    (log,) = tmp_path.glob("jobs/*/events.jsonl")
    stored = StoredRollout(log.parent)
    (branch,) = RolloutProgress.of(stored.log.events).branches
    assert (branch.activity, branch.node) == ("asks", stored.tree.leaves[0].id)
    assert branch.options
    assert writer_of(log.parent) is None
    bench("rollout", "show", log.parent)
