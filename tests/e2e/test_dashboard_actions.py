"""An operator acts on a real job in the browser: freeze, resume, cancel, run the rest, branch."""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from benchflow_dashboard import DashboardSettings, create_app
from benchflow_engine.scaffold import write_task
from benchflow_jobs import job_view
from benchflow_store import read_records
from dashboard_forms import csrf_of
from litestar import Litestar
from litestar.testing import TestClient
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse
from watching import until

BENCH = Path(sys.executable).with_name("bench")
GREET = "echo 'hello, world' > /workspace/greeting.txt"
Client = TestClient[Litestar]
pytestmark = pytest.mark.timeout(300)


class Model:
    """Answers the first call of a rollout when the test wants it."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.may_answer = threading.Event()

    def __call__(self, request: ModelRequest) -> ModelReply:
        if request.tool_results:
            return ModelReply(text="Done.")
        self.asked.set()
        assert self.may_answer.wait(120)
        return ModelReply(tools=(ToolUse("shell", {"command": GREET}),))


class Bench:
    """A job with one rollout whose model waits, and a dashboard of its directory."""

    def __init__(self, home: Path, client: Client) -> None:
        self.job, self.client = home / "jobs" / "j", client

    def post(self, path: str, **fields: str) -> str:
        """Send the form of an action, and return the URL of its result."""
        answer = self.client.post(path, data={"csrf": csrf_of(self.client), **fields})
        assert answer.status_code == 200, answer.text
        return str(answer.url)

    def outcome(self, url: str) -> str:
        return re.findall(r'data-outcome="(\w+)"', self.client.get(url).text)[0]

    def text(self, url: str) -> str:
        return unescape(re.sub(r"<[^>]*>", " ", self.client.get(url).text))

    def until_ended(self, url: str) -> None:
        until("the end of the command", lambda: self.outcome(url) in {"ended", "failed"}, 120)
        assert self.outcome(url) == "ended", " ".join(self.text(url).split())


@pytest.fixture
def model() -> Iterator[tuple[Model, ScriptedLlm]]:
    model = Model()
    with ScriptedLlm(model) as llm:
        try:
            yield model, llm
        finally:
            model.may_answer.set()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    (tmp_path / "jobs").mkdir()
    settings = DashboardSettings(jobs_dir=tmp_path / "jobs", index=tmp_path / "index.db")
    with TestClient(create_app(settings), base_url="http://127.0.0.1:8642") as client:
        yield Bench(tmp_path, client)


def greet(request: ModelRequest) -> ModelReply:
    if not request.tool_results:
        return ModelReply(tools=(ToolUse("shell", {"command": GREET}),))
    return ModelReply(text="The turn is done.")


def test_the_best_child_of_a_real_fork_is_restored(tmp_path: Path, bench: Bench) -> None:
    task = tmp_path / "tasks" / "greeter"
    write_task(task)
    with (task / "task.toml").open("a") as file:
        file.write('[agent]\nmax_turns = 2\n[user]\nmode = "scripted"\nnudges = ["Once more."]\n')
    with ScriptedLlm(greet) as llm:
        policy = ("--agent", "policy", "--model", "scripted", "--base-url", f"{llm.url}/v1")
        fork = ("--branch", "best-of", "--branch-n", "2", "--keep", "all")
        words = (str(BENCH), "run", str(task), *policy, *fork, "--jobs-dir", "jobs", "--json")
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        rollout = json.loads(done.stdout)["rollout_id"]
        path = f"/r/{rollout}/act/restore-best"
        pane = f"/r/{rollout}?sel=n0"
        until("the rollout", lambda: "Restore the best child" in bench.client.get(pane).text)
        until("its end", lambda: "still runs" not in bench.text(f"{path}?node=n0"))
        page = bench.text(f"{path}?node=n0")
        assert "from the state of child" in page, " ".join(page.split())
        bench.until_ended(bench.post(path, node="n0", n="1"))
    results = [json.loads(path.read_text()) for path in tmp_path.glob("jobs/*/result.json")]
    assert len(results) == 2
    assert {result["reward"] for result in results} == {1.0}


def start_job(home: Path, llm: ScriptedLlm) -> "subprocess.Popen[bytes]":
    write_task(home / "tasks" / "greeter")
    (home / "job.toml").write_text(
        "job.name = 'j'\ndataset.paths = ['tasks']\n[run]\nsandbox.provider = 'local'\n"
        "keep.which = 'all'\nagent.name = 'policy'\nagent.model = 'scripted'\n"
        f"model.base_url = '{llm.url}/v1'\n"
    )
    command = [str(BENCH), "job", "run", "job.toml", "--quiet"]
    return subprocess.Popen(command, cwd=home, start_new_session=True)


def test_a_job_is_frozen_resumed_cancelled_and_run_to_its_end_and_branched(
    tmp_path: Path, bench: Bench, model: tuple[Model, ScriptedLlm]
) -> None:
    waiting, llm = model
    process = start_job(tmp_path, llm)
    try:
        until("a model call", lambda: waiting.asked.is_set() or process.poll() is not None, 120)
        until("the job in the index", lambda: bench.client.get("/jobs/j").status_code == 200)

        url = bench.post("/jobs/j/act/pause-now", reason="look")
        assert "1 rollouts stand still" in bench.text(url)
        pause = job_view(bench.job).pause
        assert pause is not None
        assert pause["by"].endswith("in the dashboard")
        assert "resumed the job" in bench.text(bench.post("/jobs/j/act/resume"))
        assert "changed the limits" in bench.text(bench.post("/jobs/j/act/resize", concurrency="2"))
        assert "ending 1 rollouts" in bench.text(bench.post("/jobs/j/act/cancel"))
        process.wait(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert job_view(bench.job).status == "interrupted"
    waiting.may_answer.set()

    url = bench.post("/jobs/j/act/resume")
    bench.until_ended(url)
    records = read_records(bench.job)
    assert [each.reward for each in records if each.reward is not None] == [1.0]
    branch_from_a_checkpoint(bench)


def branch_from_a_checkpoint(bench: Bench) -> None:
    [saved] = [
        path
        for path in bench.job.glob("*/checkpoints/*")
        if path.name == "n0" and (path.parents[1] / "result.json").exists()
    ][:1]
    rollout = saved.parents[1].name
    until("the rollout", lambda: bench.client.get(f"/r/{rollout}").status_code == 200)
    page = bench.client.get(f"/r/{rollout}/act/branch?node=n0").text
    assert re.search(r'data-fact="fidelity">(live|state|replay)<', page)
    url = bench.post(f"/r/{rollout}/act/branch", node="n0", n="1")
    bench.until_ended(url)
    made: list[Any] = list(bench.job.parent.glob("*/result.json"))
    assert len(made) == 1
