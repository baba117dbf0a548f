"""Environments of verifiers in our rollouts: the rewards are those of its own runs.

The model gives the same answers in both. `nox -s foreign` runs these tests.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from benchflow_adapters_verifiers.host_process import close_hosts
from benchflow_engine.scaffold import write_task
from benchflow_store import StoredRollout, read_groups
from gym_till import serving_till, write_rows
from judge_package import install_once
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse
from world_kit import broken_promises_of

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(600)]
TASKSETS = Path(__file__).parents[1] / "support" / "verifiers_tasksets"
BENCH = Path(sys.executable).with_name("bench")
EVAL = "from verifiers.v1.cli.eval.main import main; main()"
_AGENT = ("--agent", "policy", "--model", "scripted", "--json")
_SUM = """\
name = "sum"
description = "Add numbers."

[verifier]
type = "verifiers"
reward_range = [0, 2.5]

[verifier.options]
env = "add_up"
"""
_END = "Done."
Answers = Callable[[int], ModelReply]
"""The answer to a model call, by the number of earlier answers."""


@pytest.fixture(scope="module")
def old() -> Path:
    """Return the Python of the last version with `load_environment`."""
    return install_once("verifiers==0.3.1", "reasoning-gym==0.1.25", "staros-stardata==0.1.1")


@pytest.fixture(scope="module")
def new() -> Path:
    """Return the Python of verifiers 0.4."""
    return install_once("verifiers==0.4.0")


def run(
    python: Path, source: str, answers: Answers, home: Path, *words: object, **variables: str
) -> dict[str, Any]:
    """Run a rollout of a source of tasks with the policy agent; return the record."""
    with ScriptedLlm(_scripted(answers)) as llm:
        done = subprocess.run(
            [BENCH, "run", source, *_AGENT, "--base-url", f"{llm.url}/v1", *map(str, words)],
            cwd=home,
            env=_variables(BENCHFLOW_VERIFIERS_PYTHON=str(python), **variables),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.stdout, done.stderr[-3000:]
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def refuse(python: Path, source: str, home: Path, **variables: str) -> str:
    """Run a source of tasks that must be refused before a rollout; return the message."""
    done = subprocess.run(
        [BENCH, "run", source, *_AGENT, "--base-url", "http://127.0.0.1:9/v1"],
        cwd=home,
        env=_variables(BENCHFLOW_VERIFIERS_PYTHON=str(python), **variables),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def run_alone(python: Path, ident: str, index: int, answers: Answers) -> float:
    """Run a rollout as verifiers does; return its reward."""
    [found] = run_group_alone(python, ident, index, answers)
    reward: float = found["reward"]
    return reward


def run_group_alone(
    python: Path, ident: str, index: int, answers: Answers, *group: object
) -> list[dict[str, Any]]:
    """Run rollouts as verifiers does; return their rewards and metrics."""
    with ScriptedLlm(_scripted(answers)) as llm:
        script = str(TASKSETS / "run_alone.py")
        words = [str(python), script, ident, str(index), f"{llm.url}/v1", *map(str, group)]
        done = subprocess.run(
            words, env=_variables(), capture_output=True, text=True, timeout=300, check=False
        )
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_taskset_alone(
    python: Path,
    home: Path,
    answers: Answers,
    ident: str,
    *words: object,
    role: str = "agent",
    **variables: str,
) -> dict[str, Any]:
    """Run the first task by verifiers' own `eval` and its `null` harness; return the trace."""
    with ScriptedLlm(_scripted(answers)) as llm:
        model = ("-m", "scripted", "--client.base-url", f"{llm.url}/v1")
        place = ("--no-push", "--output-dir", home, "--run.dir", "run", "-n", 1)
        seat = (f"--env.{role}.harness.id", "null", f"--env.{role}.runtime.type", "subprocess")
        words = (ident, *seat, *words, *model, "--client.api-key-var", "KEY", *place)
        done = subprocess.run(
            [python, "-c", EVAL, *map(str, words)],
            cwd=home,
            env=_variables(KEY="none", **variables),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    [episode] = map(json.loads, (home / "run" / "traces.jsonl").read_text().splitlines())
    assert episode["ok"], (episode["errors"], episode["traces"][0]["errors"])
    [trace] = episode["traces"]
    return cast("dict[str, Any]", trace)


def reward_of(trace: Mapping[str, Any]) -> float:
    """Return the reward of a trace, as verifiers defines it."""
    return sum(float(r["score"] * r["weight"]) for r in trace["rewards"].values())


def _variables(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(TASKSETS), "HF_HUB_OFFLINE": "1", **more}


def _scripted(answers: Answers) -> Callable[[ModelRequest], ModelReply]:
    def reply(request: ModelRequest) -> ModelReply:
        return answers(sum(each["role"] == "assistant" for each in request.raw["messages"]))

    return reply


def say(text: str) -> ModelReply:
    return ModelReply(text=text)


def use(name: str, /, **arguments: object) -> ModelReply:
    return ModelReply(tools=(ToolUse(name, arguments),))


def test_an_environment_of_one_turn_gives_its_own_reward(old: Path, tmp_path: Path) -> None:
    record = run(old, "verifiers://old_words?split=train&index=2", lambda _: say("5"), tmp_path)
    assert record["reward"] == run_alone(old, "old_words", 2, lambda _: say("5")) == 2.5


def test_an_environment_with_tools_gives_its_own_reward(old: Path, tmp_path: Path) -> None:
    """The tool has a hidden argument, and its first call is wrong."""

    def answers(tool: str) -> Answers:
        replies = [use(tool, amount=0), use(tool, amount=3), use(tool, amount=3), say("Done.")]
        return lambda number: replies[number]

    source = "verifiers://old_till?split=train&index=1"
    record = run(old, source, answers("mcp__world__pay_in"), tmp_path)
    assert record["reward"] == run_alone(old, "old_till", 1, answers("pay_in")) == 0.6


def test_an_environment_of_several_turns_gives_its_own_reward(old: Path, tmp_path: Path) -> None:
    def spoken(number: int) -> ModelReply:
        texts = ("50", "10", "21")
        return use("mcp__world__say", message=texts[number]) if number < 3 else say("Found.")

    record = run(old, "verifiers://old_guess?split=train&index=0", spoken, tmp_path)
    alone = run_alone(old, "old_guess", 0, lambda number: say(("50", "10", "21")[number]))
    assert record["reward"] == alone == pytest.approx(1 + 0.5 / 3)


def test_a_published_environment_gives_its_own_reward(old: Path, tmp_path: Path) -> None:
    """Reasoning Gym: the environment class is of verifiers, the tasks of another package."""

    def answers(_: int) -> ModelReply:
        return say("<answer>-4</answer>")

    record = run(old, "verifiers://old_reasoning?split=train&index=0", answers, tmp_path)
    assert record["reward"] == run_alone(old, "old_reasoning", 0, answers) == 1.0


def test_a_published_taskset_with_tools_gives_its_own_reward(new: Path, tmp_path: Path) -> None:
    """The taskset `nemo_gym` of verifiers, with a server that speaks the wire of NeMo Gym."""
    rows = write_rows(tmp_path / "rows.jsonl", 10)

    def answers(tool: str) -> Answers:
        return lambda number: use(tool, amount=3) if number < 2 else say("Done.")

    with serving_till() as url:
        arguments = json.dumps({"dataset": str(rows), "task": {"resources_url": url}})
        record = run(
            new,
            "verifiers://nemo_gym?index=0",
            answers("mcp__world__pay_in"),
            tmp_path,
            BENCHFLOW_VERIFIERS_ARGS=arguments,
        )
        # The command line of verifiers 0.4.0 has no value for a required setting of a taskset.
        settings = tmp_path / "eval.toml"
        settings.write_text(
            f'[env.taskset]\ndataset = "{rows}"\ntask = {{ resources_url = "{url}" }}\n'
        )
        trace = run_taskset_alone(new, tmp_path, answers("pay_in"), "nemo_gym", "@", settings)
    assert record["reward"] == reward_of(trace) == 0.6


def test_a_published_taskset_of_several_turns_gives_its_own_reward(tmp_path: Path) -> None:
    """The taskset `textarena` of verifiers and its engine. Its corpus is one word here.

    `hangman` names the game, as the taskset needs it, and has no code of its own.
    """
    python = install_once("verifiers==0.4.0", "textarena==0.7.4", "nltk==3.9.2")
    corpus = tmp_path / "nltk" / "corpora" / "words"
    corpus.mkdir(parents=True)
    for name in ("en", "en-basic"):
        (corpus / name).write_text("lantern\n")
    letters = ("[n]", "[q]", "[w]", "[z]", "[x]", "[y]", "[v]")

    def spoken(number: int) -> ModelReply:
        over = number == len(letters)
        return say("Lost.") if over else use("mcp__world__say", message=letters[number])

    def alone(number: int) -> ModelReply:
        return say(letters[number])

    variables = {"NLTK_DATA": str(tmp_path / "nltk")}
    record = run(python, "verifiers://hangman?index=0", spoken, tmp_path, **variables)
    trace = run_taskset_alone(python, tmp_path, alone, "hangman", role="player", **variables)
    assert record["reward"] == reward_of(trace) == pytest.approx(2 / 7)


def test_a_published_package_with_an_environment_gives_its_own_reward(
    old: Path, tmp_path: Path
) -> None:
    """`staros-stardata`: the constraints of a poem, scored without a model."""
    ident, poem = "stardata.envs.constraint_gym", "An old silent pond\nA frog jumps in\nSplash"
    record = run(old, f"verifiers://{ident}?split=train&index=0", lambda _: say(poem), tmp_path)
    assert record["reward"] == run_alone(old, ident, 0, lambda _: say(poem))
    assert 0 < record["reward"] < 1


def test_a_taskset_of_one_turn_gives_its_own_reward(new: Path, tmp_path: Path) -> None:
    record = run(new, "verifiers://count_words?index=1", lambda _: say("2"), tmp_path)
    assert record["reward"] == 2.5


def test_a_taskset_with_tools_gives_the_reward_of_its_state(new: Path, tmp_path: Path) -> None:
    move = use("mcp__world__stock_tools_move_boxes", count=3)
    replies = [move, move, say("Done.")]
    record = run(new, "verifiers://stock_room?index=1", lambda n: replies[n], tmp_path)
    assert record["reward"] == 0.6


def test_a_user_of_a_taskset_answers_what_the_agent_says(new: Path, tmp_path: Path) -> None:
    """The agent uses a tool between the questions. The environment records a reward of its own."""

    def spoken(number: int) -> ModelReply:
        replies = [
            use("mcp__world__say", message="4"),
            use("mcp__world__count_letters", word="elephant"),
            use("mcp__world__say", message="8"),
            use("mcp__world__say", message="3"),
            say("Done."),
        ]
        return replies[number]

    def alone(number: int) -> ModelReply:
        return [say("4"), use("count_letters", word="elephant"), say("8"), say("3")][number]

    record = run(new, "verifiers://ask_twice?index=0", spoken, tmp_path)
    trace = run_taskset_alone(new, tmp_path, alone, "ask_twice")
    assert record["reward"] == reward_of(trace) == pytest.approx(2 / 3 - 0.25)


def test_an_agent_that_leaves_a_conversation_is_scored_by_what_it_said(
    new: Path, tmp_path: Path
) -> None:
    def spoken(number: int) -> ModelReply:
        return use("mcp__world__say", message="3") if number == 0 else say("I am off.")

    record = run(new, "verifiers://ask_twice?index=1", spoken, tmp_path)
    assert record["reward"] == pytest.approx(1 / 2 - 0.25)


def test_an_environment_of_several_agents_is_refused_by_its_field(
    new: Path, tmp_path: Path
) -> None:
    done = refuse(new, "verifiers://two_seats", tmp_path)
    assert "verifiers:env.black" in done
    assert "white, black" in done


def run_group(
    python: Path, ident: str, arguments: str, answers: Answers, count: int, home: Path
) -> str:
    """Run a job of one task with rewards over its rollouts; return what the command said."""
    scored = "benchflow_adapters_verifiers.group:VerifiersGroupReward"
    source = f"verifiers://{ident}?split=train&start=0&limit=1"
    words = ("--repeats", count, "--jobs-dir", home, "--job-name", "j", "-n", 1)
    with ScriptedLlm(_scripted(answers)) as llm:
        endpoint = ("--base-url", f"{llm.url}/v1", "--group-reward-import-path", scored)
        done = subprocess.run(
            [BENCH, "eval", "create", "-p", source, *_AGENT, *map(str, (*endpoint, *words))],
            cwd=home,
            env=_variables(
                BENCHFLOW_VERIFIERS_PYTHON=str(python), BENCHFLOW_VERIFIERS_ARGS=arguments
            ),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    own = [json.loads(path.read_text()) for path in (home / "j").glob("*/result.json")]
    found = [(each["reward"], each["error"]["type"]) for each in own]
    assert found == [(None, "NoRewards")] * count, done.stderr
    return done.stdout + done.stderr


def one_by_one(texts: Sequence[str], *, spoken: bool = False) -> Answers:
    """Answer each model call by the next text; with `spoken`, by the tool `say` until an end."""
    left = list(texts)

    def answer(_: int) -> ModelReply:
        text = left.pop(0)
        return use("mcp__world__say", message=text) if spoken and text != _END else say(text)

    return answer


def test_a_rubric_that_scores_groups_gives_its_rewards_to_a_group_alone(
    old: Path, tmp_path: Path
) -> None:
    """The second answer is right, and the third one is as short."""
    said, arguments = ["five words", "5", "7", "5 words"], json.dumps({"compares": True})
    theirs = run_group_alone(old, "old_words", 0, one_by_one(said), len(said), arguments)
    output = run_group(old, "old_words", arguments, one_by_one(said), len(said), tmp_path)
    assert group_of(tmp_path) == in_order(theirs), output
    assert len({reward for reward, _ in group_of(tmp_path)}) > 1


@pytest.mark.parametrize("lives", [False, True])
def test_a_group_of_conversations_has_no_reward_that_a_live_state_would_change(
    old: Path, tmp_path: Path, lives: bool
) -> None:
    """One rollout answers correctly at once. With `lives`, a reward function reads the winner."""
    arguments = json.dumps({"compares": True, "lives": lives})
    said = ["50", "10", "21", _END, "21", _END]
    output = run_group(old, "old_guess", arguments, one_by_one(said, spoken=True), 2, tmp_path)
    if lives:
        results = [leaf.result for group in read_groups(tmp_path / "j") for leaf in group.leaves]
        assert [each.reward for each in results] == [None, None], output
        assert all("final_env_response" in (each.error or "") for each in results)
        return
    heard = one_by_one(["21", "50", "10", "21"])
    theirs = run_group_alone(old, "old_guess", 0, heard, 2, arguments)
    assert group_of(tmp_path) == in_order(theirs), output


def group_of(home: Path) -> list[tuple[float | None, dict[str, float]]]:
    """Return the rewards of the leaves of the group of a job, in order."""
    leaves = [leaf.result for group in read_groups(home / "j") for leaf in group.leaves]
    return in_order([{"reward": each.reward, "metrics": dict(each.items)} for each in leaves])


def in_order(found: Sequence[Mapping[str, Any]]) -> list[tuple[float | None, dict[str, float]]]:
    return sorted(((each["reward"], each["metrics"]) for each in found), key=str)


@pytest.mark.parametrize(("said", "reward"), [("7", 2.0), ("8", 0.0)])
def test_a_task_directory_names_the_rewards_of_verifiers(
    new: Path, tmp_path: Path, said: str, reward: float
) -> None:
    task = tmp_path / "sum"
    write_task(task)
    (task / "task.toml").write_text(_SUM)
    data = {"idx": 0, "id": "sum-0", "prompt": "Add the numbers [3, 4].", "numbers": [3, 4]}
    (task / "environment").mkdir(exist_ok=True)
    (task / "environment/world.json").write_text(json.dumps({"task": {"data": data}}))
    record = run(new, str(task), lambda _: say(said), tmp_path)
    assert record["reward"] == reward
    assert record["rewards"]["is_right"] == (said == "7")


def test_a_reward_function_that_fails_is_no_reward_of_zero(old: Path, tmp_path: Path) -> None:
    """Verifiers logs the error and scores 0, which a trainer cannot tell from a bad answer."""
    arguments = json.dumps({"breaks": True})
    record = run(
        old,
        "verifiers://old_words?split=train&index=0",
        lambda _: say("5"),
        tmp_path,
        BENCHFLOW_VERIFIERS_ARGS=arguments,
    )
    assert record["reward"] is None
    assert "a defect of the reward function" in json.dumps(record)


@pytest.mark.parametrize(
    ("version", "source", "tool", "arguments"),
    [
        ("old", "old_till?split=train&index=1", "pay_in", {"amount": 1}),
        ("new", "stock_room?index=0", "stock_tools_move_boxes", {"count": 1}),
    ],
)
def test_the_world_of_an_environment_keeps_every_promise(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    source: str,
    tool: str,
    arguments: dict[str, int],
) -> None:
    python: Path = request.getfixturevalue(version)
    for name, value in _variables(BENCHFLOW_VERIFIERS_PYTHON=str(python)).items():
        monkeypatch.setenv(name, value)
    try:
        assert broken_promises_of(f"verifiers://{source}", tool, **arguments) == []
    finally:
        close_hosts()


def test_children_of_a_fork_repeat_the_calls_before_it(old: Path, tmp_path: Path) -> None:
    def answers(number: int) -> ModelReply:
        return use("mcp__world__pay_in", amount=4) if number == 0 else say("Done.")

    source = "verifiers://old_till?split=train&index=0"
    forks = ("--branch", "group", "--branch-n", "2", "--branch-at-call", "2")
    record = run(old, source, answers, tmp_path, *forks)
    assert (record["reward"], record["leaves"], record["branches"]) == (1.0, 2, 1)


def test_an_imported_trace_gets_the_rewards_of_its_task_again(new: Path, tmp_path: Path) -> None:
    """Verifiers runs an episode; its task scores the imported messages, and refuses others."""

    def answers(number: int) -> ModelReply:
        return use("add_tools_add", first=3, second=5) if number == 0 else say("7")

    run_taskset_alone(new, tmp_path, answers, "add_up")
    file = tmp_path / "run" / "traces.jsonl"
    right, other, live = (
        score_again(new, file, tmp_path / place, source)
        for place, source in (
            ("right", "verifiers://add_up?index=0"),
            ("other", "verifiers://add_up?index=1"),
            ("live", "verifiers://stock_room?index=0"),
        )
    )
    assert right["reward"] == right["imported"] == 2.25
    assert right["items"] == {"is_right": 1.0, "tool_text": 1.0, "used_numbers": 0.5}
    assert other["reward"] is None
    assert "and not of" in other["error"]
    assert "verifiers:task.state" in live["refused"]


def score_again(python: Path, file: Path, jobs_dir: Path, source: str) -> dict[str, Any]:
    """Import a file by the command, scored by the rewards of a task; return the verdict."""
    rewards = "benchflow_adapters_verifiers.task_rewards:make_rewards"
    words = ("--task", source, "--reward-import-path", rewards, "--jobs-dir", str(jobs_dir))
    done = subprocess.run(
        [BENCH, "rollout", "import", file, "--format", "verifiers", *words, "--json"],
        env=_variables(BENCHFLOW_VERIFIERS_PYTHON=str(python)),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if not done.stdout:
        assert not jobs_dir.exists()
        return {"refused": done.stderr}
    [record] = json.loads(done.stdout)
    [leaf] = StoredRollout(Path(record["directory"])).tree.leaves
    verdict, imported = leaf.results["reward"], leaf.results["imported"]
    assert verdict.reward == record["reward"]
    items = dict(verdict.items)
    return {
        "reward": verdict.reward,
        "items": items,
        "error": verdict.error,
        "imported": imported.reward,
    }
