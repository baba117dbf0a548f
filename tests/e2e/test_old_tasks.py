"""Old Terminal-Bench tasks whose compose files say how a container is kept, not what it reaches.

They are run as they are, and as `harbor task migrate` of the real Harbor lays them out.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LOGS = """
    volumes:
      - ${T_BENCH_TASK_LOGS_PATH}:${T_BENCH_CONTAINER_LOGS_PATH}
      - ${T_BENCH_TASK_AGENT_LOGS_PATH}:${T_BENCH_CONTAINER_AGENT_LOGS_PATH}
"""
LIMITED = f"""
services:
  client:
    build: {{context: ., dockerfile: Dockerfile}}
    image: ${{T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME}}
    container_name: ${{T_BENCH_TASK_DOCKER_CLIENT_CONTAINER_NAME}}
    command: [sh, -c, sleep infinity]
    environment: ["TEST_DIR=${{T_BENCH_TEST_DIR}}", LANG=C.UTF-8]{LOGS}
    deploy: {{resources: {{limits: {{cpus: '1', memory: 256M}}}}}}
"""
MOUNTED = """
services:
  client:
    container_name: ${COMPOSE_PROJECT_NAME}
    build: {context: ., dockerfile: Dockerfile}
    working_dir: /app
    volumes: ["./:/app"]
    tty: true
    stdin_open: true
    command: [sleep, infinity]
"""
TASK = "instruction: Sort the numbers.\nmax_test_timeout_sec: 60\nmax_agent_timeout_sec: 60\n"
SOLVE = "#!/bin/sh\nsort -n /app/numbers.txt > /app/sorted.txt\n"
CHECK = "#!/bin/sh\nprintf '1\\n2\\n10\\n' | cmp - /app/sorted.txt\n"
NUMBERS = "10\n2\n1\n"


@pytest.fixture
def tasks(image: str, tmp_path: Path) -> Path:
    base = f"FROM {image}\nWORKDIR /app\n"
    given = {
        "limited": (LIMITED, base + "COPY numbers.txt /app/\n"),
        # The image has the runner's own files too, which only a mount or a copy brings there.
        "mounted": (MOUNTED, base + "COPY numbers.txt run-tests.sh /app/\n"),
    }
    for name, (compose, dockerfile) in given.items():
        files = {
            "task.yaml": TASK,
            "docker-compose.yaml": compose,
            "Dockerfile": dockerfile,
            "numbers.txt": NUMBERS,
            "run-tests.sh": CHECK,
            "solution.sh": SOLVE,
            "tests/seen.txt": "x\n",
        }
        for path, text in files.items():
            place = tmp_path / "tasks" / name / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
    return tmp_path / "tasks"


def picture(root: Path) -> dict[str, str]:
    return {str(p.relative_to(root)): p.read_text() for p in root.rglob("*") if p.is_file()}


@pytest.mark.parametrize("sandbox", ["local", "docker"])
def test_an_old_task_is_run_as_it_is_and_what_is_mounted_is_a_copy(
    bench: Callable[..., Any], tasks: Path, sandbox: str
) -> None:
    before = picture(tasks)
    options = ("--sandbox", sandbox, "--offline", "--json")
    rows = bench("tasks", "check", tasks, *options)
    got = {row["id"]: {run["agent"]: run["reward"] for run in row["runs"]} for row in rows}
    assert got == {name: {"nop": 0.0, "oracle": 1.0} for name in ("limited", "mounted")}
    assert picture(tasks) == before


def test_what_harbor_migrates_is_read_with_its_unset_variables(
    bench: Callable[..., Any], tasks: Path, harbor_python: str, tmp_path: Path
) -> None:
    # The mapper leaves out a run-tests.sh that the Dockerfile copies.
    dockerfile = tasks / "mounted" / "Dockerfile"
    dockerfile.write_text(dockerfile.read_text().replace(" run-tests.sh", ""))
    migrated = tmp_path / "migrated"
    command = ["-m", "harbor.cli.main", "task", "migrate", "-i", tasks, "-o", migrated]
    env = {**os.environ, "HARBOR_TELEMETRY": "off"}
    subprocess.run([harbor_python, *command], check=True, env=env, capture_output=True)
    for name in ("limited", "mounted"):
        assert "${CPUS}" in (migrated / name / "environment/docker-compose.yaml").read_text()
    rows = bench("tasks", "check", migrated, "--json")
    assert {row["id"]: row["ok"] for row in rows} == {"limited": True, "mounted": True}
    for row in rows:
        unset = [note for note in row["notes"] if "is not set" in note]
        assert [note.split("'")[1] for note in unset] == ["CPUS", "MEMORY", "TEST_DIR"]
    assert bench("run", migrated / "limited", "--sandbox", "docker", "--json")["reward"] == 1.0


def test_a_writable_mount_of_a_harbor_task_is_a_copy_in_each_box(
    bench: Callable[..., Any], tasks: Path, tmp_path: Path, image: str
) -> None:
    root = tmp_path / "harbor" / "written"
    files = {
        "task.toml": "",
        "instruction.md": "Sort the numbers.\n",
        "environment/docker-compose.yaml": 'services: {main: {volumes: ["./data:/app"]}}\n',
        "environment/Dockerfile": f"FROM {image}\nWORKDIR /app\n",
        "environment/data/numbers.txt": NUMBERS,
        "tests/test.sh": f"{CHECK}echo $((!$?)) > /logs/verifier/reward.txt\n",
        "solution/solve.sh": SOLVE,
    }
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    shutil.rmtree(tasks)
    before = picture(root)
    assert bench("run", root, "--sandbox", "docker", "--json")["reward"] == 1.0
    assert picture(root) == before
