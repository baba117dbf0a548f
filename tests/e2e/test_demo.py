"""The README's first command: act, fork at a question, score, export."""

import json
from typing import Any


def test_the_demo_ends_with_a_scored_forked_rollout(demo: dict[str, Any]) -> None:
    assert demo["status"] == "completed"
    assert (demo["branches"], demo["leaves"], demo["scored"]) == (1, 3, 3)
    assert (demo["value"]["n"], demo["grading"]) == (3, "hermetic")
    assert 0 < demo["reward"] < 1


def test_every_leaf_becomes_a_trainer_row_with_real_tool_messages(demo: dict[str, Any]) -> None:
    text = (demo["directory"] / "trainer/verifiers.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert len(rows) == 3
    assert {row["reward"] for row in rows} >= {1.0}
    assert len({tuple(row["info"]["branch"]) for row in rows}) == 3
    assert {"user", "assistant", "tool"} == {
        message["role"] for row in rows for message in row["prompt"] + row["completion"]
    }


def test_the_tree_on_disk_is_the_fold_of_the_log(demo: dict[str, Any], bench: Any) -> None:
    shown = bench("rollout", "tree", demo["directory"], "--json")
    assert shown == json.loads((demo["directory"] / "tree.json").read_text())


def test_the_fork_tells_its_fidelity_and_why(demo: dict[str, Any]) -> None:
    tree = json.loads((demo["directory"] / "tree.json").read_text())
    [branch] = [node["branch"] for node in tree["nodes"] if node["branch"]]
    assert branch["fidelity"] == "live" or branch["reason"].startswith("not live: ")
    assert branch["fidelity"] in {"live", "replay"}
    assert branch["children"] == 3


def test_every_child_keeps_its_own_wire_log_and_verdict(demo: dict[str, Any]) -> None:
    children = sorted((demo["directory"] / "branches").iterdir())
    assert len(children) == 3
    for child in children:
        assert (child / "agent/acp_wire.jsonl").stat().st_size > 0
        assert (child / "verifier/test-stdout.txt").exists()
