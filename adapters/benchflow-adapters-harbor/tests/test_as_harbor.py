"""Harbor's own reader and ours, side by side."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from benchflow_adapters_harbor import HarborAdapter, HarborStep, HarborTask, load_harbor_task
from benchflow_contracts import TaskError
from harbor_corpus import BAD, GOOD, TERMINAL_BENCH, without, write

OLD = {
    "plain": TERMINAL_BENCH,
    "rich": {
        **without(TERMINAL_BENCH, "Dockerfile"),
        "docker/Dockerfile": "FROM debian:12\nCOPY tests /t",
        "docker/start": "x\n",
        "data/input.txt": "1\n",
        "data/program": "#!/bin/sh\n",
        "tests/go": "true\n",
        "solution.sh": "true\n",
        "run-tests.sh": "cd $TEST_DIR\nbash ${TEST_DIR}/go",
        "docker-compose.yaml": """
services:
  client:
    build: {context: docker}
    environment: [A=1, "TEST_DIR=${T_BENCH_TEST_DIR}"]
    working_dir: /app
    entrypoint: [/start, now]
    expose: ["8000"]
""",
    },
}
"""Tasks of Terminal-Bench."""
PROGRAMS = {"data/program", "docker/start", "tests/go"}
"""Those of their files that may be run."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tasks")
    for name, files in (GOOD | BAD).items():
        write(root / "harbor" / name, files)
    for name, files in OLD.items():
        written = write(root / "terminal-bench" / name, files)
        for program in PROGRAMS & files.keys():
            (written / program).chmod(0o755)
    return root


@pytest.fixture(scope="module")
def theirs(harbor_python: str, tasks: Path) -> dict[str, Any]:
    script = Path(__file__).with_name("read_with_harbor.py")
    env = {**os.environ, "HARBOR_TELEMETRY": "off"}
    done = subprocess.run(
        [harbor_python, script, tasks], capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def ours(task: HarborTask) -> dict[str, Any]:
    return {
        "name": task.name,
        "config": task.config.model_dump(mode="json"),
        "digest": task.digest,
        "steps": [_step(task, step) for step in task.steps],
    }


def _step(task: HarborTask, step: HarborStep) -> dict[str, Any]:
    def inside(path: Path | None) -> str | None:
        return None if path is None else path.relative_to(task.path).as_posix()

    plan = step.verifier
    return {
        "instruction": step.instruction,
        "agent_network": step.network.model_dump(mode="json"),
        "verifier_network": plan.network.model_dump(mode="json"),
        "mode": plan.mode,
        "environment": plan.environment and plan.environment.model_dump(mode="json"),
        "directory": inside(plan.directory),
        "tests_in_image": plan.tests_in_image,
        "script": inside(plan.script),
        "artifacts": sorted(json.dumps(e.model_dump(mode="json")) for e in step.artifacts),
    }


def _artifacts_as_tables(value: Any) -> Any:
    """Harbor keeps a bare string as it is; ours is the table that it stands for."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "artifacts" and isinstance(item, list):
                bare = {"destination": None, "exclude": [], "service": None}
                value[key] = [{"source": e, **bare} if isinstance(e, str) else e for e in item]
            else:
                _artifacts_as_tables(item)
    elif isinstance(value, list):
        for item in value:
            _artifacts_as_tables(item)
    return value


@pytest.mark.parametrize("name", GOOD)
def test_a_task_is_read_as_harbor_reads_it(tasks: Path, theirs: dict[str, Any], name: str) -> None:
    told = theirs[name]
    assert told is not None, "Harbor refuses it"
    told["config"] = _artifacts_as_tables(told["config"])
    assert ours(load_harbor_task(tasks / "harbor" / name)) == told


@pytest.mark.parametrize("name", BAD)
def test_a_task_that_harbor_refuses_is_refused(
    tasks: Path, theirs: dict[str, Any], name: str
) -> None:
    assert theirs[name] is None
    with pytest.raises(TaskError):
        load_harbor_task(tasks / "harbor" / name)


@pytest.mark.parametrize("name", OLD)
def test_an_old_task_equals_its_migration_by_harbor(
    tasks: Path, theirs: dict[str, Any], name: str
) -> None:
    task = load_harbor_task(tasks / "terminal-bench" / name)
    told = theirs["terminal-bench"][name]
    assert task.config.model_dump(mode="json") == told["config"]
    assert task.steps[0].instruction == told["instruction"]


@pytest.mark.parametrize("name", OLD)
def test_an_old_task_is_laid_out_as_harbor_would_do_it(
    tasks: Path, theirs: dict[str, Any], name: str, tmp_path: Path
) -> None:
    parts = HarborAdapter(cache=tmp_path).load_task(tasks / "terminal-bench" / name).parts
    assert parts.recipe is not None
    assert parts.solution is not None
    home = parts.recipe.context.parent
    files = {
        path.relative_to(home).as_posix(): path.read_text()
        for path in home.rglob("*")
        if path.is_file()
    }
    programs = {name for name in files if (home / name).stat().st_mode & 0o111}
    told = theirs["terminal-bench"][name]["files"]
    assert sorted(programs) == theirs["terminal-bench"][name]["programs"]
    dockerfile = "environment/Dockerfile"
    assert _instructions(files.pop(dockerfile)) == _instructions(told.pop(dockerfile))
    assert files == told


def _instructions(dockerfile: str) -> list[str]:
    lines = dockerfile.splitlines()
    # A port that an image exposes changes nothing.
    return [line for line in lines if line and not line.startswith(("#", "EXPOSE"))]
