"""A rollout whose processes were all killed is resumed, scored once, and pays for nothing twice."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse, book_the_review

BENCH = Path(sys.executable).with_name("bench")
RUNNER = Path(__file__).with_name("killed_runner.py")
TASKS = Path(__file__).parents[2] / "benchmarks" / "clawsbench" / "tasks"
GREETING = 'echo "hello, world" > /workspace/greeting.txt'

pytestmark = pytest.mark.timeout(300)


class Model:
    """A model that acts by its requests, and kills the runner at one of them."""

    def __init__(
        self,
        act: Callable[[ModelRequest], ModelReply],
        *,
        kill_at: int,
        kill_by: int = signal.SIGKILL,
    ) -> None:
        self.answered = 0
        self.runner: int | None = None
        self.on_call: Callable[[], object] = lambda: None
        self._act, self._kill_at, self._kill_by = act, kill_at, kill_by

    def __call__(self, request: ModelRequest) -> ModelReply:
        if self.runner is not None and self.answered + 1 == self._kill_at:
            runner, self.runner = self.runner, None
            (os.killpg if self._kill_by == signal.SIGKILL else os.kill)(runner, self._kill_by)
            return ModelReply(text="nobody reads this")
        self.answered += 1
        self.on_call()
        return self._act(request)


def greet(request: ModelRequest) -> ModelReply:
    """In each turn run one command, and say so."""
    turns = sum(message.get("role") == "user" for message in request.raw["messages"])
    if not request.tool_results:
        command = GREETING if turns == 2 else "echo first > /workspace/first.txt"
        return ModelReply(tools=(ToolUse("shell", {"command": command}),))
    return ModelReply(text=f"Turn {turns} is done.")


def start(tmp_path: Path, task: Path, event: str, **flags: Any) -> subprocess.Popen[bytes]:
    """Start a runner whose processes are all in one group."""
    command = [sys.executable, RUNNER, task, tmp_path / "jobs", event, json.dumps(flags)]
    return subprocess.Popen(
        list(map(str, command)),
        cwd=tmp_path,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def killed(runner: subprocess.Popen[bytes], tmp_path: Path) -> Path:
    assert runner.wait(timeout=240) == -signal.SIGKILL
    (events,) = tmp_path.glob("jobs/*/events.jsonl")
    return events.parent


def policy(llm: ScriptedLlm) -> dict[str, str]:
    return {"agent": "policy", "base_url": f"{llm.url}/v1", "model": "scripted"}


def run_until_killed(tmp_path: Path, task: Path, model: Model, llm: ScriptedLlm) -> Path:
    runner = start(tmp_path, task, "never", keep="all", **policy(llm))
    model.runner = runner.pid
    return killed(runner, tmp_path)


def run_whole(bench: Any, tmp_path: Path, task: Path, act: Any) -> tuple[dict[str, Any], int]:
    """Run the same rollout without a crash; return its record and its number of model calls."""
    model = Model(act, kill_at=0)
    with ScriptedLlm(model) as llm:
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in policy(llm).items()]
        record = bench("run", task, "--jobs-dir", tmp_path / "whole", *flags, "--json")
    return record, model.answered


def content(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record without what differs in every run, and without where it began."""
    named = {"rollout_id", "finished_at", "directory", "began_from"}
    return {name: value for name, value in record.items() if name not in named}


def exported(bench: Any, record: dict[str, Any], tmp_path: Path, jobs: str, kind: str) -> list[Any]:
    """Return the training rows of a rollout, under the same id for every rollout."""
    output = tmp_path / f"{jobs}-{kind}.jsonl"
    bench(
        *("rollout", "export", record["rollout_id"], "--jobs-dir", tmp_path / jobs),
        *("--format", kind, "--output", output),
    )
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    rows = json.loads(json.dumps(rows).replace(record["rollout_id"], "ROLLOUT"))
    assert isinstance(rows, list)
    return rows


TIMES = {"timing", "time", "timestamp", "start", "end", "evidence"}
"""`evidence` has digests of files, and the files have times."""
NUMBERED = {"id", "tool_call_id", "token_ids"}
"""What the scripted server makes from the number of a request, also of one that was cut off."""


def differences(one: Any, other: Any, place: str = "") -> list[str]:
    """Return where two values differ, without times and numbers of requests."""
    if isinstance(one, dict) and isinstance(other, dict):
        found = [f"{place}/{name}" for name in one.keys() ^ other.keys()]
        for name in (one.keys() & other.keys()) - TIMES - NUMBERED:
            found += differences(one[name], other[name], f"{place}/{name}")
        return found
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [d for at, (a, b) in pairs for d in differences(a, b, f"{place}[{at}]")]
    return [] if one == other else [f"{place}: {one!r} is not {other!r}"]


def assert_same_as_whole(bench: Any, tmp_path: Path, resumed: Any, whole: Any) -> None:
    assert content(resumed) == content(whole)
    for kind in ("verifiers", "v1-graph"):
        rows = exported(bench, resumed, tmp_path, "jobs", kind)
        assert rows
        assert differences(rows, exported(bench, whole, tmp_path, "whole", kind)) == []


@pytest.fixture
def two_turns(bench: Any, tmp_path: Path) -> Path:
    bench("tasks", "init", "greeter")
    task = tmp_path / "greeter"
    with (task / "task.toml").open("a") as file:
        file.write("\n[agent]\nmax_turns = 2\n")
        file.write('\n[user]\nmode = "scripted"\nnudges = ["And now the greeting."]\n')
    return task


def test_a_live_rollout_resumes_at_its_question_and_pays_only_for_the_rest(
    bench: Any, tmp_path: Path, criu: str
) -> None:
    task = TASKS / "book-the-review-room"
    whole, calls = run_whole(bench, tmp_path, task, book_the_review)
    model = Model(book_the_review, kill_at=2)
    with ScriptedLlm(model) as llm:
        cut = run_until_killed(tmp_path, task, model, llm)
        assert model.answered == 1
        resumed = bench("rollout", "resume", cut, "--json")
    assert resumed["reward"] == 1.0
    assert model.answered == calls == 3
    began = resumed["began_from"]
    assert (began["point"], began["fidelity"], began["rollout"]) == ("checkpoint", "live", cut.name)
    assert (began["prior"]["steps"], began["prior"]["model_calls"]) == (1, 1)
    assert began["reason"] is None
    assert_same_as_whole(bench, tmp_path, resumed, whole)
    bench("rollout", "resume", cut, code=2)


def test_without_its_engine_a_live_rollout_resumes_from_the_start_of_its_turn(
    bench: Any, tmp_path: Path, criu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(book_the_review, kill_at=2)
    with ScriptedLlm(model) as llm:
        cut = run_until_killed(tmp_path, TASKS / "book-the-review-room", model, llm)
        monkeypatch.setenv("BENCHFLOW_CRIU", "/bin/false")
        first = bench("rollout", "resume", cut, "--json", code=1)
        assert (first["reward"], first["began_from"]["fidelity"]) == (None, "live")
        resumed = bench("rollout", "resume", cut, "--json")
    began = resumed["began_from"]
    assert (resumed["reward"], began["fidelity"], began["rollout"]) == (1.0, "state", cut.name)
    assert first["rollout_id"] in began["reason"]


def test_a_state_checkpoint_gives_the_agent_its_conversation_back(
    bench: Any, tmp_path: Path, two_turns: Path
) -> None:
    whole, calls = run_whole(bench, tmp_path, two_turns, greet)
    model = Model(greet, kill_at=4)
    with ScriptedLlm(model) as llm:
        cut = run_until_killed(tmp_path, two_turns, model, llm)
        model.on_call = lambda: bench("rollout", "resume", cut, code=2)
        resumed = bench("rollout", "resume", cut, "--json")
    began = resumed["began_from"]
    assert (began["point"], began["fidelity"]) == ("checkpoint", "state")
    assert began["prior"]["model_calls"] == 2
    assert model.answered == calls + 1  # The first call of the second turn was cut off.
    assert_same_as_whole(bench, tmp_path, resumed, whole)


def test_an_interrupted_rollout_resumes_from_the_start_of_its_turn(
    bench: Any, tmp_path: Path, two_turns: Path
) -> None:
    model = Model(greet, kill_at=4, kill_by=signal.SIGTERM)
    with ScriptedLlm(model) as llm:
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in policy(llm).items()]
        command = [str(BENCH), "run", str(two_turns), "--keep", "all", *flags]
        runner = subprocess.Popen(command, cwd=tmp_path, start_new_session=True)
        model.runner = runner.pid
        assert runner.wait(timeout=240) != 0
        ((cut),) = (path.parent for path in tmp_path.glob("jobs/*/result.json"))
        assert json.loads((cut / "result.json").read_text())["status"] == "cancelled"
        resumed = bench("rollout", "resume", cut, "--json")
    assert resumed["reward"] == 1.0
    assert (resumed["began_from"]["fidelity"], resumed["began_from"]["rollout"]) == (
        "state",
        cut.name,
    )


def test_an_agent_that_had_ended_is_only_graded(bench: Any, tmp_path: Path) -> None:
    bench("tasks", "init", "greeter")
    runner = start(
        tmp_path, tmp_path / "greeter", "phase_entered:verify", agent="oracle", keep="all"
    )
    cut = killed(runner, tmp_path)
    assert not (cut / "result.json").exists()
    resumed = bench("rollout", "resume", cut, "--json")
    assert resumed["reward"] == 1.0
    assert resumed["began_from"]["point"] == "grading"
    events = (tmp_path / resumed["directory"] / "events.jsonl").read_text()
    assert '"phase":"execute"' not in events
    left = bench("sandbox", "list", "--json")
    assert not [box for box in left if box["identity"]["rollout"] == cut.name]


def test_a_resumed_rollout_that_is_killed_again_resumes_where_the_first_one_did(
    bench: Any, tmp_path: Path
) -> None:
    bench("tasks", "init", "greeter")
    verify = "phase_entered:verify"
    cut = killed(
        start(tmp_path, tmp_path / "greeter", verify, agent="oracle", keep="all"), tmp_path
    )
    again = tmp_path / "again" / "greeter__2"
    runner = start(tmp_path, cut, verify, resume=str(again))
    assert runner.wait(timeout=240) == -signal.SIGKILL
    resumed = bench("rollout", "resume", cut, "--json")
    began = resumed["began_from"]
    assert (resumed["reward"], began["point"], began["rollout"]) == (1.0, "grading", cut.name)
    assert Path(resumed["directory"]).parent == again.parent


def test_a_rollout_that_lacks_only_its_summary_gets_it(bench: Any, tmp_path: Path) -> None:
    bench("tasks", "init", "greeter")
    cut = killed(
        start(tmp_path, tmp_path / "greeter", "rollout_finished:", agent="oracle"), tmp_path
    )
    assert not (cut / "result.json").exists()
    resumed = bench("rollout", "resume", cut, "--json")
    assert (resumed["reward"], resumed["rollout_id"]) == (1.0, cut.name)
    assert resumed["began_from"]["point"] == "start"
    assert (cut / "tree.json").exists()
    assert sorted(path.name for path in (tmp_path / "jobs").iterdir()) == [cut.name]


def test_a_torn_checkpoint_is_refused_and_the_one_before_it_is_taken(
    bench: Any, tmp_path: Path
) -> None:
    bench("tasks", "init", "greeter")
    runner = start(
        tmp_path, tmp_path / "greeter", "phase_entered:verify", agent="oracle", keep="all"
    )
    cut = killed(runner, tmp_path)
    start_point, end = sorted((cut / "checkpoints").iterdir())
    for file in (end / "image").iterdir():
        if file.is_file():
            os.truncate(file, file.stat().st_size // 2)
    resumed = bench("rollout", "resume", cut, "--json")
    began = resumed["began_from"]
    assert (resumed["reward"], began["checkpoint"]) == (1.0, start_point.name)
    assert end.name in began["reason"]


def test_without_a_checkpoint_it_starts_anew_and_says_why(bench: Any, tmp_path: Path) -> None:
    bench("tasks", "init", "greeter")
    runner = start(
        tmp_path, tmp_path / "greeter", "phase_entered:verify", agent="oracle", keep="all"
    )
    cut = killed(runner, tmp_path)
    shutil.rmtree(cut / "checkpoints")
    resumed = bench("rollout", "resume", cut, "--json")
    began = resumed["began_from"]
    assert (resumed["reward"], began["point"]) == (1.0, "start")
    assert began["reason"] == "no checkpoint was saved"


def test_a_changed_task_a_missing_secret_and_an_end_are_refused(bench: Any, tmp_path: Path) -> None:
    bench("tasks", "init", "greeter")
    task = tmp_path / "greeter"
    env = {"GREETING_TOKEN": "a-long-secret-value"}
    runner = start(
        tmp_path, task, "phase_entered:verify", agent="oracle", agent_env=env, keep="all"
    )
    cut = killed(runner, tmp_path)
    refused = ("rollout", "resume", cut)
    bench(*refused, code=2)
    instruction = task / "instruction.md"
    before = instruction.read_bytes()
    instruction.write_bytes(before + b"Changed.\n")
    bench(*refused, code=2)
    instruction.write_bytes(before)
    whole = bench("run", task, "--agent", "oracle", "--json")
    bench("rollout", "resume", tmp_path / whole["directory"], code=2)


def test_a_running_rollout_and_one_that_is_being_resumed_are_refused(
    bench: Any, tmp_path: Path
) -> None:
    bench("tasks", "init", "greeter")
    task = tmp_path / "greeter"

    def refuse(request: ModelRequest) -> ModelReply:
        (events,) = tmp_path.glob("jobs/*/events.jsonl")
        bench("rollout", "resume", events.parent, code=2)
        return (
            ModelReply(tools=(ToolUse("shell", {"command": GREETING}),))
            if not (request.tool_results)
            else ModelReply(text="Done.")
        )

    with ScriptedLlm(refuse) as llm:
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in policy(llm).items()]
        record = bench("run", task, *flags, "--json")
    assert record["reward"] == 1.0
