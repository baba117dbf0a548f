"""TRL's trainer takes steps from our sessions of OpenEnv, on a CPU, with a tiny model."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from foreign_program import workspace_environment
from judge_package import install_once

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(600)]

PACKAGES = ("trl==1.16.0", "openenv==0.10.0", "aiohttp", "requests")
EXAMPLE = Path(__file__).parents[2] / "examples/train-tiny/train_trl_openenv.py"


def test_the_trainer_takes_steps_from_our_sessions(tmp_path: Path) -> None:
    torch = os.environ.get("BENCHFLOW_TORCH", "torch<2.15")
    python = install_once(*PACKAGES, torch)
    environment = workspace_environment(tmp_path)
    # The worker's process imports torch and TRL once more.
    del environment["PYTHONDONTWRITEBYTECODE"]
    done = subprocess.run(
        [python, EXAMPLE, "--steps", "2", "--rows", "6"],
        cwd=tmp_path,
        env={**environment, "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    steps = [line for line in lines if "ratio" in line]
    assert [line["step"] for line in steps] == [1, 2]
    for line in steps:
        # TRL computes the log-probabilities that the gateway recorded: each token is at its place.
        assert line["ratio"] == pytest.approx(1, abs=1e-3)
        assert line["kl"] == pytest.approx(0, abs=1e-3)
        assert line["batch/trained_tokens_per_step"] >= 6
        assert 0 <= line["reward"] <= 1
