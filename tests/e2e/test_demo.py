"""The README's first command: act, fork at a question, score, export."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCH = Path(sys.executable).with_name("bench")


def on_a_terminal(cwd: Path, *words: str, columns: int) -> tuple[int, str]:
    """Run `bench` on a terminal of so many columns; return its exit code and its text."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "COLUMNS": str(columns), "NO_COLOR": "1"}
    with subprocess.Popen([BENCH, *words], cwd=cwd, stdout=theirs, stderr=theirs, env=env) as child:
        os.close(theirs)
        shown = bytearray()
        try:
            while part := os.read(ours, 65536):
                shown += part
        except OSError:
            pass  # A terminal whose last writer is gone.
        finally:
            os.close(ours)
    return child.returncode, re.sub(r"\x1b\[[\d;]*m", "", shown.decode().replace("\r", ""))


def test_the_demo_tells_its_story_in_30_lines(tmp_path: Path) -> None:
    code, text = on_a_terminal(tmp_path, "demo", columns=80)
    assert code == 0, text
    lines = text.splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 80
    names = [line.partition(" ")[0] for line in lines if not line.startswith(" ")]
    assert names[:3] == ["Task", "Agent", "User"]
    assert names[-7:-4] == ["Asks", "Fork", "V(n3)"]
    assert names[-4:] == ["Record", "Trainer", "Next", "Browser"]
    assert sorted(re.findall(r"reward ([\d.]+)", text)) == ["0", "0.25", "1"]
    assert "V(n3)     1 (n=1, se=0, by the user's answers)" in text
    assert "Wednesday 14:00 (the user's answer)" in " ".join(text.split())
    [home] = (tmp_path / "jobs").iterdir()
    assert f"bench rollout tree {home.name}" in text


def test_the_demo_ends_with_a_scored_forked_rollout(demo: dict[str, Any]) -> None:
    assert demo["status"] == "completed"
    assert (demo["branches"], demo["leaves"], demo["scored"]) == (1, 3, 3)
    assert (demo["value"]["n"], demo["grading"]) == (1, "hermetic")
    assert (demo["reward"], demo["value"]["weighting"]) == (1.0, "answers")


def test_every_leaf_becomes_a_trainer_row_with_real_tool_messages(
    demo: dict[str, Any], bench: Any, tmp_path: Path
) -> None:
    text = (demo["directory"] / "trainer/verifiers.jsonl").read_text()
    [row] = [json.loads(line) for line in text.splitlines()]
    assert (row["reward"], row["info"]["answer"], row["info"]["answer_weight"]) == (
        1.0,
        "user",
        1.0,
    )
    all_leaves = ("--output", tmp_path / "all.jsonl", "--counterfactual")
    counts = bench("rollout", "export", demo["directory"], *all_leaves, "--json")
    assert (counts["trajectories"], counts["counterfactual"]) == (3, 0)
    rows = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [row["info"]["answer"] for row in rows].count("counterfactual") == 2
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
