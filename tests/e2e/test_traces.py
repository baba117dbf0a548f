"""Trees as Verifiers v1 traces, judged by the package that defines the format."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

JUDGE = Path(__file__).with_name("check_traces.py")
PACKAGE = "verifiers==0.4.0"


def succeed(*args: object, cwd: Path) -> str:
    done = subprocess.run(
        [*map(str, args)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(cwd / "hf")},
        check=False,
    )
    assert done.returncode == 0, f"{args}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def judge(tmp_path: Path) -> Path:
    """Install the pinned package; return its Python."""
    venv = tmp_path / "venv"
    succeed("uv", "venv", "--python", sys.executable, venv, cwd=tmp_path)
    succeed(
        *("uv", "pip", "install", "--exclude-newer", "2026-11-14", "--python", venv, PACKAGE),
        cwd=tmp_path,
    )
    return venv / "bin" / "python"


@pytest.mark.timeout(300)
def test_the_package_reads_a_forked_rollout_as_leaves_as_a_graph_and_flat(
    bench: Any, judge: Path, tmp_path: Path
) -> None:
    demo = tmp_path / bench("demo", "--json")["directory"]
    for form in ("leaves", "graph", "flat"):
        bench("rollout", "export", demo, "--output", f"{form}.jsonl", "--format", f"v1-{form}")

    said = succeed(
        judge, "-I", JUDGE, "leaves.jsonl", "graph.jsonl", "--flat", "flat.jsonl", cwd=tmp_path
    )
    seen = json.loads(said)

    [leaves], [graph] = seen["leaves.jsonl"], seen["graph.jsonl"]
    assert leaves["group"] == graph["group"]
    assert leaves["traces"] == seen["flat"]
    rewards = [trace["reward"] for trace in leaves["traces"]]
    assert sorted(rewards) == [0.0, 0.25, 1.0]
    [whole] = graph["traces"]
    assert whole["reward"] == pytest.approx(sum(rewards) / 3)
    # The graph's branches are the leaves' conversations, message for message.
    assert sorted(branch["texts"] for branch in whole["branches"]) == sorted(
        branch["texts"] for trace in leaves["traces"] for branch in trace["branches"]
    )
