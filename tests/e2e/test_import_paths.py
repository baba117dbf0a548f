"""Planes of an operator's own: a module in the working directory, named on the command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchflow_engine.scaffold import write_task

BENCH = Path(sys.executable).with_name("bench")

MINE = '''
from benchflow_contracts import BaseEnvironment, EnvHandle, EnvState, TaskError, VerifyResult
from benchflow_sandbox_local import LocalProvider


class Length:
    name = "reward"

    def __init__(self, most):
        self.most = most

    async def score(self, node, evidence):
        seen = await evidence.world.sandbox.exec("cat /workspace/greeting.txt")
        return VerifyResult(reward=len(seen.stdout) / self.most)


def rewards(task, **judge):
    return [Length(task.config.verifier.options.get("most", 26))]


def nothing(task, **judge):
    return []


class World(BaseEnvironment):
    name = "world"

    def __init__(self, text):
        self.text = text

    async def provision(self, ctx):
        self.sandbox = ctx.sandbox
        if not ctx.resumed:
            await ctx.sandbox.exec(["tee", "/opt/world.txt"], user="root", stdin=self.text.encode())
        return EnvHandle(name=self.name)

    async def query(self):
        seen = await self.sandbox.exec("cat /opt/world.txt", user="root")
        return EnvState(files={"/opt/world.txt": seen.stdout})

    async def teardown(self):
        pass


def world(task, *, manifest=None):
    text = task.config.environment.options.get("text")
    if text is None:
        raise TaskError("the world needs a text", where="task.toml:environment.options.text")
    return lambda: World(text)


class Mine(LocalProvider):
    """A provider under another path."""
'''


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_task(tmp_path / "task")
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def run(home: Path, *words: str) -> tuple[dict[str, object], str]:
    command = [str(BENCH), "run", "task", "--agent", "oracle", "--json", *words]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)
    return json.loads(done.stdout or "{}"), done.stderr


def add(home: Path, text: str) -> None:
    task = home / "task/task.toml"
    task.write_text(f"{task.read_text()}\n{text}\n")


@pytest.mark.usefixtures("root")
def test_a_reward_an_environment_and_a_sandbox_are_taken_by_import_path(home: Path) -> None:
    add(home, '[verifier.options]\nmost = 13\n[environment.options]\ntext = "hello"')
    paths = ("reward", "rewards"), ("environment", "world"), ("sandbox", "Mine")
    words = [word for plane, name in paths for word in (f"--{plane}-import-path", f"mine:{name}")]
    record, said = run(home, *words)
    assert (record["status"], record["reward"], record["sandbox"]) == (
        "completed",
        1.0,
        "mine:Mine",
    ), said
    [rollout] = (home / "jobs").iterdir()
    events = [json.loads(line) for line in (rollout / "events.jsonl").read_text().splitlines()]
    refs = [event["ref"] for event in events if event["kind"] == "state_captured"]
    state = json.loads((rollout / refs[-1]["path"]).read_text())
    assert state["files"] == {"/opt/world.txt": "hello"}


@pytest.mark.usefixtures("root")
def test_what_an_import_path_lacks_is_said_before_anything_runs(home: Path) -> None:
    for words, reason in {
        ("--reward-import-path", "mine:nothing"): "makes the rewards []",
        ("--reward-import-path", "mine:absent"): "has no attribute 'absent'",
        ("--environment-import-path", "mine:world"): "the world needs a text",
        ("--sandbox-import-path", "mine:MINE"): "import path 'mine:MINE' cannot be loaded",
    }.items():
        _, said = run(home, *words)
        assert reason in said, said
    assert not (home / "jobs").exists()


@pytest.mark.usefixtures("root")
def test_a_name_that_nobody_registers_is_refused_with_the_known_ones(home: Path) -> None:
    task = home / "task/task.toml"
    task.write_text(task.read_text().replace('type = "script"', 'type = "scirpt"'))
    _, said = run(home)
    assert "no benchflow.rewards named 'scirpt'" in said
    assert "did you mean 'script'" in said
