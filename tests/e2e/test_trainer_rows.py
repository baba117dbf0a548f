"""What trainers read, judged by the package that defines the format."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from benchflow.cli.rollout import export
from benchflow_contracts import TrainingOptions
from judge_package import install, succeed

TASKS = Path(__file__).parents[2] / "benchmarks" / "clawsbench" / "tasks"
JUDGE = Path(__file__).with_name("check_trainer_rows.py")
# The last release with `RolloutOutput`; 0.4 writes another format.
PACKAGE = "verifiers==0.3.1"


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the pinned package; return its Python."""
    return install(PACKAGE, tmp_path_factory.mktemp("judge"))


@pytest.mark.timeout(300)
def test_the_package_reads_every_row_and_would_have_written_the_same(
    bench: Any, demo: dict[str, Any], judge: Path, tmp_path: Path
) -> None:
    every = TrainingOptions(counterfactual=True)
    export(str(demo["directory"]), output=tmp_path / "forked.jsonl", options=every)
    tasks = ("--tasks-dir", TASKS, "--max-tasks", "2")
    bench("eval", "create", *tasks, "--agent", "nop", "--job-name", "j", "--json")
    shutil.copy(tmp_path / "jobs/j/verifiers.jsonl", tmp_path / "job.jsonl")
    bench("tasks", "init", "plain")
    plain = tmp_path / bench("run", "plain", "--agent", "oracle", "--json")["directory"]
    shutil.copy(plain / "trainer/verifiers.jsonl", tmp_path / "plain.jsonl")
    export(str(demo["directory"]), output=tmp_path / "sft.jsonl", format="sft", options=every)

    rows = ("forked.jsonl", "job.jsonl", "plain.jsonl")
    seen = json.loads(succeed(judge, "-I", JUDGE, *rows, "--sft", "sft.jsonl", cwd=tmp_path))

    forked, job, [alone] = (seen["rows"][name] for name in rows)
    assert len(forked) == 3
    assert {row["calls"] > 0 for row in forked} == {True}
    assert seen["sft_calls"] == sum(row["calls"] for row in forked)
    assert {row["environment"] for row in forked + job} == {"clawsbench"}
    assert len(job) == 2
    assert (alone["reward"], alone["environment"]) == (1.0, None)
