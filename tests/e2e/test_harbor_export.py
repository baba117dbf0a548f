"""Rollouts exported for Harbor, judged by Harbor's own models and shown by its viewer."""

import itertools
import json
import os
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from benchflow_export import write_export
from benchflow_store import read_model_calls
from benchflow_testing.fakes import fake_finished_rollout, fake_hostile_rollout
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TASKS = Path(__file__).parents[2] / "benchmarks" / "clawsbench" / "tasks"
STEPS = Path(__file__).parents[2] / "benchmarks" / "steps"
JUDGE = Path(__file__).with_name("check_harbor_job.py")
TASK = "clawsbench/book-the-review-room"


@pytest.fixture(scope="module")
def harbor(harbor_python: str) -> Path:
    return Path(harbor_python)


def quiet_home(home: Path) -> dict[str, str]:
    """Return an environment in which Harbor tells nobody, and writes to `home`."""
    return {**os.environ, "HARBOR_TELEMETRY": "off", "HOME": str(home), "NO_COLOR": "1"}


def judged(harbor: Path, cwd: Path, *jobs: str) -> dict[str, Any]:
    done = subprocess.run(
        [harbor, "-I", JUDGE, *jobs],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=240,
        env=quiet_home(cwd),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def own(trial: dict[str, Any]) -> list[Any]:
    """Return the steps that are no copies, without their numbers."""
    return [step for step in trial["steps"] if not step.get("is_copied_context")]


@contextmanager
def viewer(harbor: Path, jobs: Path) -> Iterator[str]:
    """Run `harbor view` on a free port of the loopback device; yield its address."""
    command = [harbor.with_name("harbor"), "view", jobs, "--jobs", "--no-build"]
    server = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=quiet_home(jobs.parent),
    )
    try:
        assert server.stdout is not None
        told = []
        for line in server.stdout:
            told.append(line)
            if found := re.search(r"running on (http://127\.0\.0\.1:\d+)", line):
                yield found[1]
                return
        pytest.fail(f"the viewer did not start:\n{''.join(told)}")
    finally:
        server.kill()
        server.communicate()


def fetched(address: str, *path: str) -> Any:
    url = "/".join(
        [address, "api", "jobs", *(urllib.parse.quote(part, safe="?=") for part in path)]
    )
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)


def test_harbor_reads_a_forked_job_and_its_viewer_shows_it(
    bench: Any, harbor: Path, tmp_path: Path
) -> None:
    report = bench(
        *("eval", "create", "--tasks-dir", TASKS, "--include", TASK, "--agent", "oracle"),
        *("--branch", "ask-user", "--export", "harbor", "--job-name", "forked", "--json"),
    )
    assert report["scored"] == 1
    jobs = tmp_path / "jobs" / "forked" / "export" / "harbor"
    bench("eval", "export", "forked", "--output", "again/forked")

    first = judged(harbor, jobs, "forked")
    assert judged(harbor, tmp_path / "again", "forked") == first
    trials = first["forked"]["trials"]
    scores = sorted(trial["rewards"]["reward"] for trial in trials.values())
    assert scores == [0.0, 0.25, 1.0]
    assert all(trial["mode"] == "separate" and trial["stdout"] for trial in trials.values())
    # Every step of the tree is original in one trial, and only there.
    originals = [own(trial) for trial in trials.values()]
    whole = max(originals, key=len)
    fork = 1 + next(at for at, step in enumerate(whole) if asks(step))
    for trial in trials.values():
        told = [{k: v for k, v in s.items() if k != "is_copied_context"} for s in trial["steps"]]
        assert told[:fork] == whole[:fork]
    assert sorted(map(len, originals)) == [len(whole) - fork] * 2 + [len(whole)]

    name = next(name for name, trial in trials.items() if trial["rewards"]["reward"] == 1.0)
    with viewer(harbor, jobs) as address:
        [job] = fetched(address)["items"]
        assert (job["name"], job["n_completed_trials"], job["n_errored_trials"]) == ("forked", 3, 0)
        shown = fetched(address, "forked", "trials")["items"]
        assert sorted(trial["reward"] for trial in shown) == scores
        assert fetched(address, "forked", "trials", name)["task_name"] == TASK
        path = fetched(address, "forked", "trials", name, "trajectory")
        assert len(path["steps"]) == len(trials[name]["steps"])
        output = fetched(address, "forked", "trials", name, "verifier-output")
        assert output["reward"]["reward"] == 1.0


def test_harbor_reads_a_task_of_several_steps_and_its_viewer_shows_each(
    bench: Any, harbor: Path, tmp_path: Path
) -> None:
    bench(
        *("eval", "create", "--tasks-dir", STEPS, "--agent", "oracle", "--branch", "group"),
        *("--branch-at", 1, "--branch-n", 2, "--export", "harbor", "--job-name", "stepped"),
    )
    jobs = tmp_path / "jobs" / "stepped" / "export" / "harbor"
    trials = judged(harbor, jobs, "stepped")["stepped"]["trials"]
    of_steps = {"sort": {"reward": 1.0}, "merge": {"reward": 1.0}}
    assert [trial["of_steps"] for trial in trials.values()] == [of_steps] * 2
    name = next(iter(trials))
    with viewer(harbor, jobs) as address:
        shown = fetched(address, "stepped", "trials", name)
        assert [step["step_name"] for step in shown["step_results"]] == ["sort", "merge"]
        path = fetched(address, "stepped", "trials", name, "trajectory?step=merge")
        assert "More words have come" in path["steps"][0]["message"]


def asks(step: dict[str, Any]) -> bool:
    return any(call["function_name"] == "ask_user" for call in step.get("tool_calls", ()))


def test_harbor_reads_hostile_text_and_what_has_no_score(harbor: Path, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    write_export("harbor", [fake_finished_rollout(), fake_hostile_rollout()], jobs / "odd")
    write_export("harbor", [], jobs / "none")

    seen = judged(harbor, jobs, "odd", "none")
    assert seen["none"]["trials"] == {}
    trials = seen["odd"]["trials"]
    lost = trials["paint__0001__n3"]
    assert (lost["rewards"], lost["exception"]) == (None, "AgentTimeoutError")
    assert seen["odd"]["metrics"]["fake__model__fakes"] == [{"reward": 0.5, "even": 0.5}]
    with viewer(harbor, jobs) as address:
        assert fetched(address, "odd", "trials", "paint__0001__n3")["verifier_result"] is None
        path = fetched(address, "odd", "trials", "paint__0002", "trajectory")
        assert path["steps"] == trials["paint__0002"]["steps"]


def book(request: ModelRequest) -> ModelReply:
    """Ask which event is meant, and change the one that the user names."""
    seen = request.tool_results
    if not seen:
        ask = {"question": "Which review with Dana?", "options": ["evt-10", "evt-11"]}
        return ModelReply(text="Only you can tell.", tools=(ToolUse("ask_user", ask),))
    if len(seen) == 1:
        chosen = next(event for event in ("evt-10", "evt-11") if event in seen[0])
        command = f"claw-gcal update {chosen} --add-attendee room-maple@harborlight.example"
        return ModelReply(tools=(ToolUse("shell", {"command": command}),))
    return ModelReply(text="Booked.")


def test_harbor_reads_the_tokens_that_a_forked_policy_sampled_and_counts_each_call_once(
    bench: Any, harbor: Path, tmp_path: Path
) -> None:
    with ScriptedLlm(book) as llm:
        endpoint = ("--base-url", f"{llm.url}/v1", "--model", "scripted", "--upstream", "vllm")
        task = TASKS / "book-the-review-room"
        made = bench("run", task, "--agent", "policy", *endpoint, "--branch", "ask-user", "--json")
    rollout = tmp_path / made["directory"]
    bench("rollout", "export", rollout, "--output", "jobs/policy", "--format", "harbor")

    seen = judged(harbor, tmp_path / "jobs", "policy")["policy"]
    calls = [call for call in read_model_calls(rollout).values() if call.purpose == "main"]
    assert seen["spent"] == [
        sum(call.usage.input_tokens for call in calls),
        sum(call.usage.output_tokens for call in calls),
    ]
    assert len(seen["trials"]) == 2
    for trial in seen["trials"].values():
        [detail] = trial["tokens"]
        turns = list(zip(detail["prompt_token_ids"], detail["completion_token_ids"], strict=True))
        assert len(turns) == len(detail["logprobs"]) == 3
        for (prompt, said), (later, _) in itertools.pairwise(turns):
            assert later[: len(prompt) + len(said)] == prompt + said
        metrics = [step["metrics"] for step in trial["steps"] if "metrics" in step]
        assert turns == [(m["prompt_token_ids"], m["completion_token_ids"]) for m in metrics]
    copies = [trial["tokens"][0]["extra"]["is_copied_context"] for trial in seen["trials"].values()]
    assert sorted(copies) == [[False, False, False], [True, False, False]]
