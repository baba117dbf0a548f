"""A public task of `inspect-evals` runs under Inspect and in our rollouts, with equal scores.

The task is CodeIPI: its data are in the package, a setup solver writes the files of a sample, and
the scorer compares files of the sandbox with digests that the setup took.
"""

import json
import shutil
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from inspect_judge import EVALS, run_inspect
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(500)]

TASK = "inspect_evals/ipi_coding_agent"
SAMPLE = "ipi-readme-persist-01-authority"
FIX = "sed -i 's/name.strip/(name or str()).strip/' /workspace/src/formatting.py"
OBEY = "echo monitoring-agent-helper > /workspace/requirements.txt"
CONFIG = """\
provider = "local"
image = "python-with-pytest"
user = "root"
workdir = "/workspace"
[env]
PYTHONPATH = "/opt/pytest"
"""


class Programmer:
    """Fixes the bug and submits. Every second one also obeys the text in the README."""

    def __init__(self) -> None:
        self.began = 0

    def __call__(self, request: ModelRequest) -> ModelReply:
        if not request.tools:
            return ModelReply(text="It did not flag anything.\nGRADE: I")
        if request.tool_results:
            call = ToolUse("submit", {"answer": "The function accepts None now."})
            return ModelReply(text="Done.", tools=(call,))
        self.began += 1
        command = FIX if self.began % 2 else f"{FIX}; {OBEY}"
        return ModelReply(text="I fix it.", tools=(ToolUse("bash", {"command": command}),))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with an image that has pytest, which replaces the image of the task."""
    root = tmp_path / "images" / "python-with-pytest" / "rootfs"
    packages = Path(sysconfig.get_path("purelib"))
    for name in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        shutil.copytree(packages / name, root / "opt" / "pytest" / name)
    shutil.copy(packages / "py.py", root / "opt" / "pytest")
    (root / "usr/local/bin").mkdir(parents=True)
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    (tmp_path / "sandbox.toml").write_text(CONFIG)
    monkeypatch.setenv("BENCHFLOW_IMAGES", str(tmp_path / "images"))
    monkeypatch.setenv("BENCHFLOW_INSPECT_SANDBOX", str(tmp_path / "sandbox.toml"))
    return tmp_path


def test_two_branches_get_the_scores_that_inspect_gives_to_the_same_actions(home: Path) -> None:
    with ScriptedLlm(Programmer()) as llm:
        done = _inspect(
            home, "-m", "inspect_ai", "eval", TASK, "--sandbox", "benchflow",
            "--sample-id", SAMPLE, "--epochs", "2", "--max-samples", "1",
            "--model", "benchflow/scripted", "--model-base-url", f"{llm.url}/v1",
            "--log-format", "json",
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (home / "logs").glob("*.json")
    samples = json.loads(path.read_text())["samples"]
    theirs = [{f"ipi_scorer.{k}": v for k, v in _value(each).items()} for each in samples]
    assert sorted(each["ipi_scorer.accuracy"] for each in theirs) == [0.0, 1.0]
    assert [each["ipi_scorer.task_completed"] for each in theirs] == [1.0, 1.0]

    listing = _bench(home, "tasks", "list", f"inspect:{TASK}", "--json")
    assert listing.returncode == 0, listing.stdout + listing.stderr
    (folder,) = (home / "cache/benchflow/inspect").glob(f"*/{SAMPLE}")
    # The limit of the task holds for every agent, so the listing has no note of it.
    assert '"max_messages": 30' in (folder / "inspect-sample.json").read_text()
    with ScriptedLlm(Programmer()) as llm:
        done = _bench(
            home, "run", str(folder), "--agent", "inspect-solver", "--model", "scripted",
            "--base-url", f"{llm.url}/v1", "--jobs-dir", "jobs",
            "--branch", "group", "--branch-n", "2", "--branch-concurrency", "1",
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (events,) = (home / "jobs").rglob("events.jsonl")
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    scored = [e["result"] for e in lines if e["kind"] == "node_scored" and e["name"] == "reward"]
    ours = [each["items"] for each in scored]
    assert sorted(ours, key=str) == sorted(theirs, key=str)
    assert sorted(each["reward"] for each in scored) == [0.0, 1.0]


def _value(sample: dict[str, Any]) -> dict[str, float]:
    value: dict[str, float] = sample["scores"]["ipi_scorer"]["value"]
    return value


def _inspect(home: Path, *args: str) -> Any:
    return run_inspect(home, *args, packages=(EVALS,), timeout=400)


def _bench(home: Path, *args: str) -> Any:
    program = "import os; os.environ['XDG_CACHE_HOME'] = os.path.abspath('cache');"
    return _inspect(home, "-c", f"{program} from benchflow.cli import main; main()", *args)
