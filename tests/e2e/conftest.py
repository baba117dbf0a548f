"""The installed `bench`, run as a user runs it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from own_engine import OwnEngine
from scripted_llm import ScriptedLlm, book_the_review

TASKS = Path(__file__).parents[2] / "benchmarks" / "clawsbench" / "tasks"
BENCH = Path(sys.executable).with_name("bench")


def run_bench(cwd: Path, *args: object, code: int = 0) -> Any:
    """Run `bench` in `cwd`; return its JSON, or its output without --json."""
    done = subprocess.run(
        [str(BENCH), *map(str, args)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "NO_COLOR": "1"},
        check=False,
    )
    assert done.returncode == code, f"{args}\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout) if "--json" in args else done.stdout


@pytest.fixture(scope="session")
def bench_in() -> Callable[..., Any]:
    """Run `bench` in a directory."""
    return run_bench


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., Any]:
    """Run `bench` in an empty directory."""

    def call(*args: object, code: int = 0) -> Any:
        return run_bench(tmp_path, *args, code=code)

    return call


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the README's first command once; return its record with an absolute directory."""
    cwd = tmp_path_factory.mktemp("demo")
    record: dict[str, Any] = run_bench(cwd, "demo", "--json")
    return {**record, "directory": cwd / record["directory"]}


@pytest.fixture(scope="session")
def forked_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fork a policy at its question, once; return the rollout. Its model is gone."""
    cwd = tmp_path_factory.mktemp("forked")
    with ScriptedLlm(book_the_review) as llm:
        endpoint = ("--base-url", f"{llm.url}/v1", "--model", "scripted", "--upstream", "vllm")
        forks = ("--agent", "policy", "--branch", "ask-user")
        made = run_bench(cwd, "run", TASKS / "book-the-review-room", *endpoint, *forks, "--json")
    return cwd / made["directory"]


@pytest.fixture(scope="session")
def older(image: str, older_engine: Path) -> Iterator[OwnEngine]:
    """Start Docker 20.10, with a bridge."""
    with closing(OwnEngine((), older_engine)) as engine:
        engine.start()
        assert engine.api.version()["Version"].startswith("20.10.")
        engine.take(image)
        yield engine
