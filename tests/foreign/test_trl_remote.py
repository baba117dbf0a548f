"""TRL's trainer takes steps from the rollouts of a `bench serve` in another process, on a CPU."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from foreign_program import workspace_environment
from judge_package import install_once
from serve_process import serving

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(900)]

PACKAGES = ("trl==1.16.0", "openenv==0.10.0", "aiohttp", "requests")
"""Those of `test_openenv_trainer`, so that both use one environment."""
EXAMPLE = Path(__file__).parents[2] / "examples" / "train-tiny"
AGENT = ("--agent", "policy", "--agent-env.BENCHFLOW_POLICY_MAX_CALLS", "4", "--slots", "3")


def test_the_trainer_takes_steps_from_rollouts_of_a_service(tmp_path: Path) -> None:
    python = install_once(*PACKAGES, os.environ.get("BENCHFLOW_TORCH", "torch<2.15"))
    with serving(tmp_path / "serve", *AGENT, tasks=EXAMPLE / "tasks") as server:
        token = server.client.headers["Authorization"].removeprefix("Bearer ")
        words = ("--steps", "3", "--rows", "6", "--remote", str(server.client.base_url))
        done = subprocess.run(
            [python, EXAMPLE / "train_trl_async.py", *words],
            cwd=tmp_path,
            env={
                **workspace_environment(tmp_path),
                "BENCHFLOW_SERVE_TOKEN": token,
                "HF_HUB_OFFLINE": "1",
                "TRL_EXPERIMENTAL_SILENCE": "1",
            },
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        policy = server.client.get("/v1/policies/tiny").json()
        capacity = server.client.get("/v1/capacity").json()
    steps = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    assert [line["step"] for line in steps] == [1, 2, 3]
    # New weights reach the model between two calls, and each row has a sampled token.
    assert len({line["value"] for line in steps}) >= 2
    assert steps[-1]["tokens"] >= 18
    assert policy["updates"] >= 2
    assert capacity["ended"] >= 18
    assert capacity["losses"].keys() <= {"agent"}
