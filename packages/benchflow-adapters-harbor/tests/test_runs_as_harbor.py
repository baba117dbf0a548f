"""Harbor itself runs our tasks: what it gives is what our table says."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from harbor_corpus import write
from running_case import BASE
from running_containers import CONTAINERS
from running_phases import PHASES
from running_rewards import REWARDS
from running_separate import SEPARATE
from running_steps import STEPS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(570)]

CASES = REWARDS | PHASES | SEPARATE | CONTAINERS | STEPS


def asked(variable: str, script: str) -> str:
    value = os.environ.get(variable)
    if value is None:
        why = f"export {variable}=$({script})"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(why)
    return value


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tasks")
    image = asked("BENCHFLOW_DOCKER_IMAGE", ".ci/docker")
    for name, case in CASES.items():
        write(root / name, {path: text.replace(BASE, image) for path, text in case.files.items()})
    return root


@pytest.fixture(scope="module")
def theirs(tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what Harbor gives for every task: it is run once, for all of them."""
    python = asked("BENCHFLOW_HARBOR", ".ci/harbor")
    client = asked("BENCHFLOW_COMPOSE", ".ci/compose")
    home = tmp_path_factory.mktemp("harbor")
    (home / "agents.json").write_text(json.dumps({name: c.agent for name, c in CASES.items()}))
    env = {
        **os.environ,
        "HARBOR_TELEMETRY": "off",
        "HOME": str(home),
        "DOCKER_CONFIG": client,
        "BUILDX_CONFIG": str(home / "buildx"),
        "PATH": f"{client}/bin:{os.environ['PATH']}",
    }
    script = Path(__file__).with_name("run_with_harbor.py")
    done = subprocess.run(
        [python, script, tasks, home / "trials", home / "agents.json"],
        capture_output=True,
        text=True,
        env=env,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", CASES)
def test_harbor_gives_what_the_table_says(theirs: dict[str, Any], name: str) -> None:
    case, found = CASES[name], theirs[name]
    assert outcome(found) == (case.rewards, case.exception), found
    assert tuple(outcome(step) for step in found["steps"]) == case.steps, found


def outcome(found: dict[str, Any]) -> tuple[Any, str | None]:
    rewards = found["rewards"]
    return (None if rewards is None else pytest.approx(rewards)), found["exception"]
