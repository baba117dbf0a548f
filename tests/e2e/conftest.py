"""`bench` as a fork of a process that has imported it: a start of `bench` takes 0.5 CPU s."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from forked_bench import ForkedBench
from own_engine import OwnEngine
from scripted_llm import ScriptedLlm, book_the_review

TASKS = Path(__file__).parents[2] / "benchmarks" / "clawsbench" / "tasks"
Run = Callable[..., Any]


@pytest.fixture(scope="session")
def bench_in() -> Iterator[Run]:
    """Run `bench` in a directory; return its JSON, or its output without --json."""

    def run(cwd: Path, *args: object, code: int = 0) -> Any:
        env = {**os.environ, "NO_COLOR": "1"}
        done = forked.run([*map(str, args)], cwd=cwd, env=env, timeout=240)
        assert done.returncode == code, f"{args}\n{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout) if "--json" in args else done.stdout

    with closing(ForkedBench()) as forked:
        yield run


@pytest.fixture
def bench(tmp_path: Path, bench_in: Run) -> Run:
    """Run `bench` in an empty directory."""
    return partial(bench_in, tmp_path)


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory, bench_in: Run) -> dict[str, Any]:
    """Run the README's first command once; return its record with an absolute directory."""
    cwd = tmp_path_factory.mktemp("demo")
    record: dict[str, Any] = bench_in(cwd, "demo", "--json")
    return {**record, "directory": cwd / record["directory"]}


@pytest.fixture(scope="session")
def forked_policy(tmp_path_factory: pytest.TempPathFactory, bench_in: Run) -> Path:
    """Fork a policy at its question, once; return the rollout. Its model is gone."""
    cwd = tmp_path_factory.mktemp("forked")
    with ScriptedLlm(book_the_review) as llm:
        endpoint = ("--base-url", f"{llm.url}/v1", "--model", "scripted", "--upstream", "vllm")
        forks = ("--agent", "policy", "--branch", "ask-user")
        made = bench_in(cwd, "run", TASKS / "book-the-review-room", *endpoint, *forks, "--json")
    return cwd / made["directory"]


@pytest.fixture(scope="session")
def older(image: str, older_engine: Path) -> Iterator[OwnEngine]:
    """Start Docker 20.10, with a bridge."""
    with closing(OwnEngine((), older_engine)) as engine:
        engine.start()
        assert engine.api.version()["Version"].startswith("20.10.")
        engine.take(image)
        yield engine
