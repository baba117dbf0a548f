"""The README's first command: act, fork at a question, score, export."""

import json
from pathlib import Path
from typing import Any


def test_the_demo_ends_with_a_scored_forked_exported_rollout(bench: Any, tmp_path: Path) -> None:
    record = bench("demo", "--json")
    assert record["status"] == "completed"
    assert (record["branches"], record["leaves"], record["scored"]) == (1, 3, 3)
    assert 0 < record["reward"] < 1
    home = tmp_path / record["directory"]
    rows = [json.loads(line) for line in (home / "trainer/verifiers.jsonl").open()]
    assert len(rows) == 3
    assert {row["reward"] for row in rows} >= {1.0}
    assert len({tuple(row["info"]["branch"]) for row in rows}) == 3
    assert {"user", "assistant", "tool"} == {
        message["role"] for row in rows for message in row["prompt"] + row["completion"]
    }


def test_the_tree_on_disk_is_the_fold_of_the_log(bench: Any, tmp_path: Path) -> None:
    home = tmp_path / bench("demo", "--json")["directory"]
    shown = bench("rollout", "tree", home, "--json")
    assert shown == json.loads((home / "tree.json").read_text())


def test_every_node_of_the_fork_tells_its_fidelity_and_why(bench: Any, tmp_path: Path) -> None:
    home = tmp_path / bench("demo", "--json")["directory"]
    tree = json.loads((home / "tree.json").read_text())
    [branch] = [node["branch"] for node in tree["nodes"] if node["branch"]]
    assert branch["fidelity"] == "replay"
    assert branch["reason"]
    assert branch["children"] == 3
