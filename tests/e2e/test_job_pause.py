"""A job that is paused at once: what runs stands still, and pays neither time nor model calls."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from benchflow_engine.scaffold import write_task
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse, book_the_review
from watching import until

BENCH = Path(sys.executable).with_name("bench")
TASKS = Path(__file__).parents[2] / "benchmarks" / "clawsbench" / "tasks"
TURN_SEC = 45
"""The turn limit that a pause exceeds. On a busy machine an order takes 20 s."""
GREET = "echo 'hello, world' > /workspace/greeting.txt"
pytestmark = pytest.mark.timeout(300)


class Model:
    """Lets the agent start a busy process, and answers the second call when the test wants it."""

    def __init__(self, mark: str) -> None:
        self.answered = 0
        self.asked = threading.Event()
        """The second call has come."""
        self.may_answer = threading.Event()
        self._busy = f"sh -c 'while :; do :; done' {mark} >/dev/null 2>&1 &"

    def __call__(self, request: ModelRequest) -> ModelReply:
        count = len(request.tool_results)
        if count == 1:
            self.asked.set()
            assert self.may_answer.wait(120)
        self.answered += 1
        if count == 2:
            return ModelReply(text="Done.")
        command = (self._busy, GREET)[count]
        return ModelReply(tools=(ToolUse("shell", {"command": command}),))


def busy(mark: str) -> list[int]:
    """Return the busy processes with this mark."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                argv = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if argv[:2] == [b"sh", b"-c"] and argv[-2:] == [mark.encode(), b""]:
                found.append(int(entry.name))
    return found


def cpu(process: int) -> int:
    """Return the CPU time of a process in clock ticks."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


class Job:
    """The job `j` in a directory, with one rollout."""

    def __init__(
        self,
        home: Path,
        llm: ScriptedLlm,
        sandbox: str,
        task: Path | None = None,
        turn_sec: int = 240,
    ) -> None:
        self.home, self.directory = home, home / "jobs" / "j"
        if task is None:
            task = home / "tasks" / "greeter"
            write_task(task)
            with (task / "task.toml").open("a") as file:
                file.write(f"\n[agent]\ntimeout_sec = {turn_sec}\n")
        (home / "job.toml").write_text(
            "\n".join(
                (
                    f"job.name = 'j'\ndataset.paths = ['{task}']\n[run]\n{sandbox}",
                    "agent.name = 'policy'\nagent.model = 'scripted'",
                    f"model.base_url = '{llm.url}/v1'",
                )
            )
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [str(BENCH), "job", "run", "job.toml", "--quiet"]
        self.process = subprocess.Popen(command, cwd=self.home, start_new_session=True)

    def until_asked(self, asked: threading.Event) -> None:
        """Wait until a model call has come."""
        assert self.process is not None
        process = self.process
        until("a model call", lambda: asked.is_set() or process.poll() is not None, 120)
        assert asked.is_set()

    def order(self, *words: str) -> Any:
        command = [str(BENCH), "job", words[0], "j", *words[1:], "--json"]
        done = subprocess.run(command, cwd=self.home, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def resume(self) -> None:
        """Continue the job in a new process."""
        command = [str(BENCH), "job", "resume", "j", "--quiet"]
        self.process = subprocess.Popen(command, cwd=self.home, start_new_session=True)

    def end(self) -> dict[str, Any]:
        """Wait for the process, and return the only record that counts."""
        assert self.process is not None
        self.process.wait(timeout=200)
        lines = (self.directory / "results.jsonl").read_text().splitlines()
        (record,) = map(json.loads, lines)
        assert isinstance(record, dict)
        return record

    def kill(self) -> None:
        if self.process is not None:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@contextmanager
def job(*args: Any, **more: Any) -> Generator[Job]:
    made = Job(*args, **more)
    try:
        yield made
    finally:
        made.kill()


@pytest.fixture(params=["local", "docker"])
def sandbox(request: pytest.FixtureRequest) -> str:
    """The configuration of a sandbox."""
    if request.param == "local":
        return "sandbox.provider = 'local'"
    image = request.getfixturevalue("image")
    return f"sandbox.provider = 'docker'\nimage = '{image}'"


@pytest.fixture
def mark(request: pytest.FixtureRequest) -> str:
    """A mark of this test's processes."""
    return f"bf-busy-{os.getpid()}-{abs(hash(request.node.name))}"


def test_a_rollout_stands_still_for_longer_than_its_turn_limit_and_ends_as_any_other(
    tmp_path: Path, sandbox: str, mark: str
) -> None:
    model = Model(mark)
    with ScriptedLlm(model) as llm, job(tmp_path, llm, sandbox, turn_sec=TURN_SEC) as j:
        j.start()
        j.until_asked(model.asked)
        (process,) = busy(mark)
        reply = j.order("pause", "--now", "--reason", "look")
        assert reply["message"] == "paused the job; 1 rollouts stand still"
        paused_at, before = time.monotonic(), cpu(process)
        model.may_answer.set()
        until("the answer of the model", lambda: model.answered == 2)
        view = j.order("status")
        assert (view["pause"]["held"], view["pause"]["running_on"]) == (1, {})
        assert [each["slot"] for each in view["running"]] == ["greeter#0"]
        until("a pause over the limit", lambda: time.monotonic() > paused_at + TURN_SEC + 1)
        assert cpu(process) == before
        assert (model.answered, len(busy(mark))) == (2, 1)
        assert j.order("resume")["message"] == "resumed the job"
        record = j.end()
    assert (record["status"], record["reward"], record["error"]) == ("completed", 1.0, None)
    assert model.answered == 3
    until("the end of the busy process", lambda: not busy(mark))


def test_a_job_that_is_killed_while_it_stands_still_leaves_nothing_and_resumes(
    tmp_path: Path, sandbox: str, mark: str
) -> None:
    model = Model(mark)
    with ScriptedLlm(model) as llm, job(tmp_path, llm, sandbox) as j:
        j.start()
        j.until_asked(model.asked)
        assert j.order("pause", "--now")["message"] == "paused the job; 1 rollouts stand still"
        j.kill()
        model.may_answer.set()
        j.resume()
        assert j.end()["reward"] == 1.0
    until("the end of the frozen process", lambda: not busy(mark))


def greet(request: ModelRequest) -> ModelReply:
    """In each turn run one command, and say so."""
    turns = sum(message.get("role") == "user" for message in request.raw["messages"])
    if not request.tool_results:
        return ModelReply(tools=(ToolUse("shell", {"command": GREET}),))
    return ModelReply(text=f"Turn {turns} is done.")


class FirstCall:
    """A model that answers its first call when the test wants it, and counts its answers."""

    def __init__(self, act: Callable[[ModelRequest], ModelReply]) -> None:
        self.answered = 0
        self.asked, self.may_answer = threading.Event(), threading.Event()
        self._act = act

    def __call__(self, request: ModelRequest) -> ModelReply:
        self.asked.set()
        assert self.may_answer.wait(120)
        self.answered += 1
        return self._act(request)


def save(j: Job, model: FirstCall) -> dict[str, Any]:
    """Save the only rollout, which is in its first model call; return the state of the job."""
    j.start()
    j.until_asked(model.asked)
    reply = j.order("pause", "--keep")
    assert reply["message"] == "paused the job; 1 rollouts run until they can be saved"
    model.may_answer.set()
    until("a saved rollout", lambda: not j.order("status")["running"])
    view = j.order("status")
    assert isinstance(view, dict)
    assert (view["status"], view["pending"], view["failed"]) == ("paused", 1, 0)
    assert (view["pause"]["saved"], view["pause"]["running_on"]) == (1, {})
    return view


def test_a_live_rollout_is_saved_at_its_question_and_another_process_pays_for_the_rest(
    tmp_path: Path, criu: str
) -> None:
    model = FirstCall(book_the_review)
    with (
        ScriptedLlm(model) as llm,
        job(tmp_path, llm, "sandbox.provider = 'local'", task=TASKS / "book-the-review-room") as j,
    ):
        save(j, model)
        assert model.answered == 1
        j.kill()
        j.resume()
        record = j.end()
    began = record["began_from"]
    assert (record["reward"], began["point"], began["fidelity"]) == (1.0, "checkpoint", "live")
    assert began["prior"]["model_calls"] == 1
    assert model.answered == 3


def test_a_saved_rollout_continues_in_the_same_process_from_the_next_turn(tmp_path: Path) -> None:
    model = FirstCall(greet)
    with ScriptedLlm(model) as llm, job(tmp_path, llm, "sandbox.provider = 'local'") as j:
        with (tmp_path / "tasks/greeter/task.toml").open("a") as file:
            file.write("max_turns = 2\n")
            file.write('\n[user]\nmode = "scripted"\nnudges = ["And once more."]\n')
        save(j, model)
        assert model.answered == 2
        j.order("resume")
        record = j.end()
    began = record["began_from"]
    assert (record["reward"], began["point"]) == (1.0, "checkpoint")
    assert (began["prior"]["model_calls"], model.answered) == (2, 4)


def test_a_rollout_whose_agent_ends_is_saved_and_later_only_graded(tmp_path: Path) -> None:
    model = FirstCall(greet)
    with ScriptedLlm(model) as llm, job(tmp_path, llm, "sandbox.provider = 'local'") as j:
        save(j, model)
        j.kill()
        j.resume()
        record = j.end()
    assert (record["reward"], record["began_from"]["point"]) == (1.0, "grading")
    assert model.answered == 2
