"""A job that is paused at once: what runs stands still, and pays neither time nor model calls."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from benchflow_engine.scaffold import write_task
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse
from watching import until

BENCH = Path(sys.executable).with_name("bench")
TURN_SEC = 20
"""The turn limit of the task."""
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

    def __init__(self, home: Path, llm: ScriptedLlm, sandbox: str, **run: Any) -> None:
        self.home, self.directory = home, home / "jobs" / "j"
        write_task(home / "tasks" / "greeter")
        (home / "job.toml").write_text(
            "\n".join(
                (
                    f"job.name = 'j'\ndataset.paths = ['tasks']\n[run]\n{sandbox}",
                    "agent.name = 'policy'\nagent.model = 'scripted'",
                    f"model.base_url = '{llm.url}/v1'",
                    *(f"{name} = {value!r}" for name, value in run.items()),
                    f"[tasks.greeter]\nagent_timeout_sec = {TURN_SEC}",
                )
            )
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [str(BENCH), "job", "run", "job.toml", "--quiet"]
        self.process = subprocess.Popen(command, cwd=self.home, start_new_session=True)

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
def job(*args: Any, **run: Any) -> Generator[Job]:
    made = Job(*args, **run)
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
    with ScriptedLlm(model) as llm, job(tmp_path, llm, sandbox) as j:
        j.start()
        assert model.asked.wait(120)
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
        assert model.asked.wait(120)
        assert j.order("pause", "--now")["message"] == "paused the job; 1 rollouts stand still"
        j.kill()
        model.may_answer.set()
        j.resume()
        assert j.end()["reward"] == 1.0
    until("the end of the frozen process", lambda: not busy(mark))
