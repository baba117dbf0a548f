"""A task that needs what only its operator can give: a path, a variable, an image that is built."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchflow_engine.flags import run_config
from benchflow_engine.task_formats import runnable_task

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

COMPOSE = """
services:
  main:
    environment: ["WORD=${WORD}"]
    volumes: ["${SHARED}:/shared"]
  keeper:
    build: ./keeper
    command: [sh, -c, "echo $${WORD} > /data/kept; sleep infinity"]
    environment: {WORD: "${WORD}"}
    volumes: ["${SHARED}:/data"]
    healthcheck: {test: [CMD, test, -s, /data/kept], interval: 200ms, retries: 100}
"""
WORD = "word-4711"


@pytest.fixture
def task(image: str, tmp_path: Path) -> Path:
    files = {
        "task.toml": '[environment]\ndocker_image = "nobody.invalid/has:this"\n',
        "instruction.md": "Say the word.\n",
        "environment/docker-compose.yaml": COMPOSE,
        "environment/Dockerfile": f"FROM {image}\nWORKDIR /srv\n",
        "environment/keeper/Dockerfile": f"FROM {image}\n",
        "tests/test.sh": "#!/bin/sh\ncmp /shared/said /shared/kept\n"
        "echo $((!$?)) > /logs/verifier/reward.txt\n",
        "solution/solve.sh": "#!/bin/sh\nwhile [ ! -s /shared/kept ]; do sleep 0.1; done\n"
        'echo "$WORD" > /shared/said\n',
    }
    for path, text in files.items():
        place = tmp_path / "task" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return tmp_path / "task"


def test_a_trusted_task_has_the_paths_and_variables_that_its_operator_gives(
    bench: Callable[..., Any],
    task: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setenv("WORD", WORD)
    monkeypatch.setenv("SHARED", str(shared))
    given = ("--forward-env", "WORD", "--forward-env", "SHARED")
    run = ("run", task, "--sandbox", "docker", *given)
    bench(*run, code=3)
    trusted = (*run, "--trust-host-access", "--force-build", "--json")
    record = bench(*trusted)
    assert record["reward"] == 1.0
    assert (shared / "said").read_text() == f"{WORD}\n"
    # What was given is in no record.
    records = [p for p in (tmp_path / record["directory"]).rglob("*") if p.is_file()]
    assert [p.name for p in records if WORD.encode() in p.read_bytes()] == []


def test_what_a_trusted_task_opens_is_said_in_one_line(
    task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SHARED", str(tmp_path))
    options = run_config(forward_env=("SHARED",), trust_host_access=True)
    runnable_task(task, options.adapter_options())
    (line,) = caplog.messages
    assert f"'main' may read and write {str(tmp_path)!r}, as '/shared'" in line
    assert f"'keeper' may read and write {str(tmp_path)!r}, as '/data'" in line
