"""Tasks of Inspect run in BenchFlow's rollouts, and their scorers score each leaf."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from benchflow_testing import reward_checks
from inspect_judge import PROGRAMS, run_inspect, run_program
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(300)]

COMMAND = "cat given.txt setup.txt > answer.txt; cat answer.txt"


def write_the_words(request: ModelRequest) -> ModelReply:
    """Run one command and say what it printed. A request without tools is the scorers' own."""
    if not request.tools:
        return ModelReply(text="The answer has both words.\nGRADE: C")
    if request.tool_results:
        return ModelReply(text=f"I wrote {request.tool_results[-1].strip()}")
    name = "shell" if "shell" in request.tools else "bash"
    return ModelReply(text="I look.", tools=(ToolUse(name, {"command": COMMAND}),))


def write_nothing(request: ModelRequest) -> ModelReply:
    return ModelReply(text="I do not know.")


@pytest.fixture
def task_dir(tmp_path: Path) -> Path:
    shutil.copy(PROGRAMS / "word_task.py", tmp_path)
    return tmp_path


def test_two_branches_get_the_score_that_inspect_gives_to_the_same_actions(task_dir: Path) -> None:
    own = run_inspect(
        task_dir, "-m", "inspect_ai", "eval", "word_task.py@words", "--model", "none/none",
        "--limit", "1", "--log-format", "json",
    )  # fmt: skip
    assert own.returncode == 0, own.stdout + own.stderr
    (path,) = (task_dir / "logs").glob("*.json")
    (sample,) = json.loads(path.read_text())["samples"]
    expected = {name: {"C": 1.0, "I": 0.0}[s["value"]] for name, s in sample["scores"].items()}
    with ScriptedLlm(write_the_words) as llm:
        events = _bench(task_dir, llm, "words", "--branch", "group", "--branch-n", "2")
    leaves = _leaves(events)
    assert [leaf["items"] for leaf in leaves] == [expected, expected]
    assert [leaf["reward"] for leaf in leaves] == [1.0, 1.0]
    # The same rollout as a log: each of its four model calls counts once in the totals.
    done = _run(
        task_dir, "rollout", "export", str(events.parent), "--format", "inspect",
        "--output", "exported",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (log,) = (task_dir / "exported").glob("*.eval")
    read = run_program(task_dir, "read_log.py", log, with_benchflow=False)
    assert read["lost"] == []
    assert read["scores"] == [{"reward": 1.0}] * 2
    assert [branch[0] for branch in read["branches"][0]] == ["n0"]
    assert read["usage"] == {"scripted": sum(read["tokens"][1:]) * 2}


def test_an_agent_that_does_nothing_gets_zero_from_the_scorers(task_dir: Path) -> None:
    with ScriptedLlm(write_nothing) as llm:
        (leaf,) = _leaves(_bench(task_dir, llm, "words"))
    assert leaf["items"] == {"file_is": 0.0, "includes": 0.0}


def test_a_scorer_with_a_model_calls_the_endpoint_of_the_rollout_and_is_recorded(
    task_dir: Path,
) -> None:
    with ScriptedLlm(write_the_words) as llm:
        rollout = _bench(task_dir, llm, "judged")
    (leaf,) = _leaves(rollout)
    assert leaf["reward"] == 1.0
    assert leaf["meta"]["scorer_model_calls"] == 1


@pytest.mark.parametrize("kind", ["broken", "wordy"])
def test_a_scorer_that_fails_or_gives_no_number_leaves_the_leaf_unscored(
    task_dir: Path, kind: str
) -> None:
    with ScriptedLlm(write_nothing) as llm:
        rollout = _bench(task_dir, llm, f"unscorable?kind={kind}", check=False)
    (leaf,) = _leaves(rollout)
    assert leaf["reward"] is None
    assert {"broken": "disk of the scorer", "wordy": "not a number"}[kind] in leaf["error"]


SOLVER = ("--agent", "inspect-solver")
TWO_BRANCHES = ("--branch", "group", "--branch-n", "2")


@pytest.mark.parametrize("agent", ["inspect-solver", "policy"])
def test_the_setup_solver_runs_before_every_agent_and_its_state_reaches_the_scorer(
    task_dir: Path, agent: str
) -> None:
    with ScriptedLlm(write_the_words) as llm:
        events = _bench(task_dir, llm, "prepared", "--agent", agent, *TWO_BRANCHES)
    leaves = _leaves(events)
    assert [leaf["items"]["as_the_setup_said.same"] for leaf in leaves] == [1.0, 1.0]


def test_a_setup_solver_that_failed_runs_again_when_the_job_is_resumed(task_dir: Path) -> None:
    mark = task_dir / "setup-is-broken"
    mark.touch()
    with ScriptedLlm(write_the_words) as llm:
        source = ("--tasks-dir", "inspect:word_task.py@prepared", "--job-name", "j")
        agent = ("--agent", "policy", "--base-url", f"{llm.url}/v1", "--model", "scripted")
        first = _run(task_dir, "eval", "create", *source, *agent)
        assert "the server of the setup is away" in first.stdout + first.stderr
        assert _results(task_dir) == [None]
        mark.unlink()
        done = _run(task_dir, "job", "resume", "j")
    assert done.returncode == 0, done.stdout + done.stderr
    assert 1.0 in _results(task_dir)


def _results(home: Path) -> list[float | None]:
    """Return the reward of each rollout of the job."""
    files = sorted((home / "jobs").glob("*/*/result.json"))
    return [json.loads(file.read_text())["reward"] for file in files]


def test_the_solver_of_a_task_is_an_agent_whose_model_calls_are_steps(task_dir: Path) -> None:
    with ScriptedLlm(write_the_words) as llm:
        events = _bench(task_dir, llm, "prepared", *SOLVER)
    first, last = _steps(events)
    assert [call["name"] for call in first["tool_calls"]] == ["bash"]
    assert [each["content"].strip() for each in first["observations"]] == ["bluegreen"]
    assert (last["message"], last["stop_reason"]) == ("I wrote bluegreen", "end_turn")
    assert [len(step["model_calls"]) for step in (first, last)] == [1, 1]
    assert last["meta"]["inspect_limit"] is None
    (leaf,) = _leaves(events)
    assert leaf["items"]["as_the_setup_said.messages"] == 4


def test_the_agent_of_solvers_passes_the_conformance_kit(task_dir: Path) -> None:
    results = run_program(task_dir, "agent_kit.py")
    assert results["failed"] == []
    for name in ("a_turn_acts_in_its_own_sandbox", "nothing_of_an_abandoned_turn_runs_on"):
        assert f"{name}: " in results["passed"]


def test_the_rewards_of_scorers_pass_the_conformance_kit(task_dir: Path) -> None:
    results = run_program(task_dir, "reward_kit.py")
    assert results == {"failed": [], "checks": 2 * len(reward_checks())}


def test_a_message_limit_of_the_task_ends_its_solver_which_is_scored(task_dir: Path) -> None:
    with ScriptedLlm(write_the_words) as llm:
        events = _bench(task_dir, llm, "prepared?message_limit=3", *SOLVER)
    (step,) = _steps(events)
    assert step["meta"]["inspect_limit"] == "message"
    assert [each["content"].strip() for each in step["observations"]] == ["bluegreen"]
    (leaf,) = _leaves(events)
    assert leaf["items"] == {"as_the_setup_said.same": 1.0, "as_the_setup_said.messages": 3.0}


@pytest.mark.parametrize("agent", ["inspect-solver", "policy"])
@pytest.mark.parametrize("limit", ["turn_limit=1", "token_limit=1"])
def test_a_limit_on_turns_or_tokens_ends_every_agent_after_its_first_call_which_is_scored(
    task_dir: Path, agent: str, limit: str
) -> None:
    """Inspect does not use the tools of an answer that exceeds its limit on tokens."""
    with ScriptedLlm(write_the_words) as llm:
        events = _bench(task_dir, llm, f"prepared?{limit}", "--agent", agent)
    steps = _steps(events)
    assert sum(len(step.get("model_calls", ())) for step in steps) <= 2
    assert [status for status in _statuses(events) if status == 200] == [200]
    (leaf,) = _leaves(events)
    used_tool = (agent, limit) != ("inspect-solver", "token_limit=1")
    assert leaf["items"]["as_the_setup_said.same"] == float(used_tool)


def test_a_message_limit_ends_another_agent_and_others_refuse_it_by_name(task_dir: Path) -> None:
    with ScriptedLlm(write_the_words) as llm:
        events = _bench(task_dir, llm, "prepared?message_limit=4", "--agent", "policy")
        refused = _bench_process(task_dir, llm, "prepared?working_limit=60", "--agent", "policy")
        priced = _bench_process(task_dir, llm, "prepared?cost_limit=1", "--agent", "policy")
    assert [status for status in _statuses(events) if status == 200] == [200]
    (leaf,) = _leaves(events)
    assert leaf["items"]["as_the_setup_said.same"] == 1.0
    for done, name in ((refused, "working_limit = 60"), (priced, "--usd-per-mtok")):
        assert name in done.stdout + done.stderr
    assert "reward 1" not in refused.stdout + priced.stdout


def test_a_limit_that_only_the_solver_applies_is_a_note_of_the_listing(task_dir: Path) -> None:
    source = "inspect:word_task.py@prepared?token_limit=output:5&turn_limit=3"
    done = _run(task_dir, "tasks", "list", source, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "type 'output': only the agent inspect-solver applies it" in done.stdout
    assert "turn_limit" not in done.stdout


def test_a_question_with_choices_is_scored_by_its_letter(task_dir: Path) -> None:
    with ScriptedLlm(lambda request: ModelReply(text="ANSWER: B")) as llm:
        (leaf,) = _leaves(_bench(task_dir, llm, "letters"))
    assert leaf["reward"] == 1.0


def test_hostile_scores_are_unscored_and_hostile_files_are_refused_by_name(tmp_path: Path) -> None:
    facts = run_program(tmp_path, "hostile.py", tmp_path / "cache")
    rewards = {kind: reward for kind, (reward, _) in facts["verdicts"].items()}
    assert {kind for kind, reward in rewards.items() if reward is not None} == {"long explanation"}
    errors = {kind: text for kind, (reward, text) in facts["verdicts"].items() if reward is None}
    assert {kind for kind, text in errors.items() if len(text) > 3000} == set()
    assert "SystemExit" in errors["exit"]
    assert "is not a number" in errors["huge integer"]
    assert facts["verdicts"]["long explanation"][1] < 100_000
    refused = {name.rpartition("/")[2]: reasons for name, reasons in facts["files"].items()}
    assert refused.pop("good") == []
    assert [len(reasons) for reasons in refused.values()] == [1] * 7
    assert all("files[" in reason for (reason,) in refused.values())
    assert list(tmp_path.rglob("evil")) == []


def test_each_sample_is_listed_with_its_files_and_setup(task_dir: Path) -> None:
    done = _run(task_dir, "tasks", "list", "inspect:word_task.py@words", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "words/sample-1" in done.stdout
    assert "words/sample-2" in done.stdout


def _bench(directory: Path, llm: ScriptedLlm, task: str, *args: str, check: bool = True) -> Path:
    done = _bench_process(directory, llm, task, *args)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    (events,) = (directory / "jobs").rglob("events.jsonl")
    return events


def _bench_process(
    directory: Path, llm: ScriptedLlm, task: str, *args: str
) -> subprocess.CompletedProcess[str]:
    name, mark, query = task.partition("?")
    return run_inspect(
        directory, PROGRAMS / "run_sample.py", f"inspect:word_task.py@{name}{mark}{query}",
        *(() if "--agent" in args else ("--agent", "policy")),
        "--base-url", f"{llm.url}/v1", "--model", "scripted", "--jobs-dir", "jobs", *args,
    )  # fmt: skip


def _run(directory: Path, *args: str) -> subprocess.CompletedProcess[str]:
    program = "import os; os.environ['XDG_CACHE_HOME'] = os.path.abspath('cache');"
    program += "from benchflow.cli import main; main()"
    return run_inspect(directory, "-c", program, *args)


def _statuses(events: Path) -> list[int]:
    """Return the HTTP status of each recorded model call."""
    files = sorted((events.parent / "model").rglob("*.jsonl"))
    return [json.loads(line)["status"] for file in files for line in file.read_text().splitlines()]


def _leaves(events: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    return [e["result"] for e in lines if e["kind"] == "node_scored" and e["name"] == "reward"]


def _steps(events: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    return [e["step"] for e in lines if e["kind"] == "step_finished"]
