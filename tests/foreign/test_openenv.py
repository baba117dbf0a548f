"""OpenEnv's own package plays our tasks, and its servers are worlds of our rollouts."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchflow_adapters_openenv.tasks import episode_task
from benchflow_engine.data_tasks import write_data_task
from benchflow_engine.flags import run_config
from benchflow_engine.rollout import RunResult, run
from benchflow_kernel import load_task
from benchflow_store import StoredRollout
from foreign_program import workspace_environment
from judge_package import install_once
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse
from world_kit import broken_promises

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(300)]

OPENENV = "openenv==0.10.0"
PROGRAM = Path(__file__).parents[1] / "support/openenv_programs/play.py"


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The report of a program that plays our tasks by OpenEnv, and whose servers still run.

    One program, because OpenEnv's package takes seconds to import.
    """
    home = tmp_path_factory.mktemp("openenv")
    with subprocess.Popen(
        [install_once(OPENENV), PROGRAM],
        cwd=home,
        env=workspace_environment(home),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        try:
            assert program.stdout is not None
            lines = (line for line in program.stdout if line.startswith('{"server"'))
            yield {**json.loads(next(lines)), "home": str(home)}
            program.communicate(timeout=60)
        finally:
            program.kill()


def test_the_generic_client_plays_our_server(played: dict[str, Any]) -> None:
    server = played["server"]
    assert "hello, world" in server["prompt"] == server["again"]
    assert server["wrong"] is True
    assert server["listed"] == ["bash", "read_file", "write_file", "submit"]
    assert server["state"]["step_count"] == 2
    reward, done, metadata = server["last"]
    assert (reward, done) == (1.0, True)
    assert (metadata["truncated"], metadata["unscored"]) == (False, None)
    assert "ended" in server["after"]
    record = StoredRollout(Path(played["home"]) / "jobs" / server["state"]["rollout"]).record
    assert record is not None
    assert (record.agent, record.reward) == ("tool-session", 1.0)
    assert record.grading == "hermetic"
    answers = server["answers"]
    assert answers["health"] == {"status": "healthy"}
    assert answers["schema"]["action"]["properties"]["type"]["const"] == "call_tool"
    assert answers["state"]["step_count"] == 0
    assert answers["benchflow/splits"] == [{"name": "test", "type": "test"}]
    assert len(answers["mcp"]["result"]["tools"]) == 4
    assert "hello, world" in answers["reset"]["observation"]["prompt"]


def test_the_code_of_the_guide_runs_and_two_children_of_a_fork_differ(
    played: dict[str, Any],
) -> None:
    guide = played["guide"]
    assert (guide["last"], guide["rewards"], guide["gone"]) == (1.0, [1.0, 0.0], "NoSessionError")


def test_a_repeated_fork_has_the_same_children_and_ids_of_ended_ones_are_deleted(
    played: dict[str, Any],
) -> None:
    assert played["guide"]["repeated"] == [[True, 2], [True, 2]]


def test_the_harness_plays_a_session_and_an_unscored_one_has_no_reward(
    played: dict[str, Any],
) -> None:
    session = played["session"]
    assert session["messages"][0]["role"] == "user"
    assert session["tools"][-1] == "submit"
    assert "not a file" in session["failed"]
    assert session["verdict"][:2] == [1.0, True]
    reward, why = session["unscored"]
    assert reward is None
    assert "exit code 1" in why


def test_the_calls_of_our_agent_are_a_training_trace(played: dict[str, Any]) -> None:
    agent = played["agent"]
    assert (agent["code"], agent["turns"], agent["reward"]) == (0, 2, 1.0)
    assert agent["trained"] == [True, True]
    assert agent["equal"] is True
    assert "no exact tokens" in agent["refused"]


def test_sessions_of_one_seed_sample_differently_and_by_the_trainers_parameters(
    played: dict[str, Any],
) -> None:
    agent = played["agent"]
    assert agent["seeds"] == 2
    assert agent["temperatures"] == [None, 0.5]


def _run(url: str, uses: list[tuple[str, Any]], home: Path, **flags: Any) -> RunResult:
    """Play an episode by fixed tool calls."""

    def act(request: ModelRequest) -> ModelReply:
        done = len(request.tool_results)
        if done == len(uses):
            return ModelReply(text="Done.")
        name, arguments = uses[done]
        return ModelReply(tools=(ToolUse(f"mcp__world__{name}", arguments),))

    task = write_data_task(episode_task(url, 3), home)
    with ScriptedLlm(act) as llm:
        config = run_config(
            agent="policy",
            base_url=f"{llm.url}/v1",
            model="scripted",
            capture_state="none",
            **flags,
        )
        return asyncio.run(run(task, config=config, jobs_dir=home))


def test_a_stock_environment_is_a_world_that_two_children_replay(
    played: dict[str, Any], tmp_path: Path
) -> None:
    uses = [("step", {"message": "abc"}), ("step", {"text": 1}), ("step", {"message": "abcde"})]
    url = f"http://127.0.0.1:{played['port']}"
    result = _run(url, uses, tmp_path, branch="group", branch_at_call=2, branch_n=2)
    leaves = result.tree.leaves
    assert [leaf.reward for leaf in leaves] == [pytest.approx(0.8)] * 2
    texts = [[seen.content for step in leaf.steps for seen in step.observations] for leaf in leaves]
    assert texts[0] == texts[1]
    assert json.loads(texts[0][0])["observation"]["echoed_message"] == "abc"
    assert "Invalid message" in texts[0][1]
    task = write_data_task(episode_task(url, 3), tmp_path / "kit")
    assert broken_promises(load_task(task), "step", message="abc") == []


def test_our_own_server_is_a_world_with_the_same_reward_and_a_token(
    played: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("a-token-of-the-operator\n")
    monkeypatch.setenv("BENCHFLOW_OPENENV_TOKEN_FILE", str(tmp_path / "token"))
    uses = [
        ("bash", {"command": "echo hello, world > greeting.txt"}),
        ("submit", {"message": "done"}),
    ]
    assert played["server"]["without_token"] == 401
    result = _run(played["server"]["url"], uses, tmp_path / "home")
    assert result.reward == 1.0
    recorded = [each for each in (tmp_path / "home").rglob("*") if each.is_file()]
    assert not [each for each in recorded if b"a-token-of-the" in each.read_bytes()]
    (leaf,) = result.tree.leaves
    prompt = leaf.steps[0].prompt or ""
    assert "hello, world" in prompt
    assert '"done": true' in leaf.steps[1].observations[0].content


def test_a_server_that_is_gone_leaves_the_rollout_unscored(tmp_path: Path) -> None:
    result = _run("http://127.0.0.1:9", [("step", {})], tmp_path)
    assert result.reward is None
    assert result.record.error is not None
