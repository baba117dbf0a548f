"""An agent whose command hits the memory limit: the record says it, and the reward stays."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
BENCH = Path(sys.executable).with_name("bench")
EATS = "#!/bin/sh\npython3 -c 'len(bytearray(300 << 20))'\ntrue\n"


@pytest.mark.parametrize("sandbox", ["local", "docker"])
def test_the_record_says_that_the_agent_hit_its_memory_limit(
    bench: Callable[..., Any], tmp_path: Path, sandbox: str, request: pytest.FixtureRequest
) -> None:
    if sandbox == "docker":
        request.getfixturevalue("image")
    bench("tasks", "init", "eater")
    (tmp_path / "eater/solution/solve.sh").write_text(EATS)
    task = tmp_path / "eater/task.toml"
    task.write_text(task.read_text() + "\n[environment]\nmemory_mb = 128\n")
    bench("run", "eater", "--agent", "oracle", "--sandbox", sandbox)
    [tree] = tmp_path.glob("jobs/*/tree.json")
    assert '"agent_memory_kills": 1' in json.dumps(json.loads(tree.read_text()))
    shown = subprocess.run(
        [BENCH, "rollout", "show", tree.parent.name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "reward 0" in shown.stdout + shown.stderr
    assert "processes of the agent that the memory limit killed: 1" in shown.stdout + shown.stderr
