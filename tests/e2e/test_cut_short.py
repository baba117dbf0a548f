"""What a killed rollout has kept is gone on from, by who has kept it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from watching import until

BENCH = Path(sys.executable).with_name("bench")
DEADLINE = 120.0

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def killed(bench: Any, tmp_path: Path) -> str:
    """Kill a runner after its first checkpoint; return the rollout's id."""
    bench("tasks", "init", "sleeper")
    solve = tmp_path / "sleeper/solution/solve.sh"
    solve.write_text(solve.read_text().replace("\n", "\n[ -e /tmp/again ] || sleep 86399\n", 1))
    runner = subprocess.Popen(
        [str(BENCH), "run", "sleeper", "--agent", "oracle", "--keep", "all"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until("a saved checkpoint", lambda: any(tmp_path.glob("jobs/*/checkpoints/n0")), DEADLINE)
    finally:
        os.kill(runner.pid, signal.SIGKILL)
        runner.wait()
    bench("sandbox", "prune")
    [kept] = bench("checkpoint", "list", "--json")
    return str(kept["rollout"])


def test_a_checkpoint_of_a_killed_runner_is_gone_on_from_and_scored(
    bench: Any, killed: str
) -> None:
    go_on = ("rollout", "branch", killed, "--at", "n0", "--fault", "touch /tmp/again", "--json")
    assert [one["reward"] for one in bench(*go_on)["rollouts"]] == [1.0]
    bench("rollout", "replay", killed, code=2)


def test_an_edited_checkpoint_is_refused_until_it_is_trusted(
    bench: Any, killed: str, tmp_path: Path
) -> None:
    taken = tmp_path / "taken"
    bench("checkpoint", "export", killed, "n0", "--output", taken)
    path = taken / "checkpoint.json"
    manifest = json.loads(path.read_text())
    assert len(manifest["seal"]) == 64
    path.write_text(json.dumps({**manifest, "taken_at": 1.0}))
    go_on = ("rollout", "branch", killed, "--source", taken, "--fault", "touch /tmp/again")
    bench(*go_on, code=2)
    again = bench(*go_on, "--trust", "--json")
    assert [one["reward"] for one in again["rollouts"]] == [1.0]
