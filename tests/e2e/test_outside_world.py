"""A world outside the sandbox, played by the policy agent in a sandbox without a network."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import RolloutNode, Task, VerifyResult
from benchflow_engine.data_tasks import write_data_task
from benchflow_engine.flags import run_config
from benchflow_engine.live_groups import LiveGroups
from benchflow_kernel import read_events
from benchflow_store import StoredRollout
from benchflow_tool_sessions import ForkRefusedError, SessionLimits, open_session
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse
from vault_world import Vault, vault_server, vault_task

pytestmark = pytest.mark.timeout(300)

SUPPORT = Path(__file__).parents[1] / "support"
BENCH = Path(sys.executable).with_name("bench")


def attempt(number: int) -> ModelReply:
    return ModelReply(tools=(ToolUse("mcp__world__try", {"number": number}),))


def player(*second: int) -> Callable[[ModelRequest], ModelReply]:
    """Try 50, then the next number of `second`, then end."""
    numbers = list(second)

    def act(request: ModelRequest) -> ModelReply:
        seen = request.tool_results
        if not seen:
            return attempt(50)
        if len(seen) == 1 and numbers:
            return attempt(numbers.pop(0))
        return ModelReply(text="Done.")

    return act


@pytest.fixture
def run(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))

    def call(vault: Vault, llm: ScriptedLlm, *more: object, code: int = 0, **options: Any) -> Any:
        task = write_data_task(vault_task(3, vault.url, **options), tmp_path)
        endpoint = ("--base-url", f"{llm.url}/v1", "--model", "scripted", "--agent", "policy")
        path = ("--environment-import-path", "vault_world:environment")
        return bench("run", task, *endpoint, *path, *more, "--json", code=code)

    return call


def test_a_policy_acts_in_a_world_outside_its_sandbox(run: Any, tmp_path: Path) -> None:
    with vault_server() as vault, ScriptedLlm(player(21)) as llm:
        record = run(vault, llm)
    assert record["reward"] == pytest.approx(0.9)
    assert vault.tries == [("s0", 50), ("s0", 21)]
    assert vault.open == set()
    rollout = StoredRollout(tmp_path / record["directory"])
    prompts = [node.step.prompt for node in rollout.tree.nodes if node.step and node.step.prompt]
    assert prompts == ["Open vault 3. Call try with a number of 0 to 99."]
    (leaf,) = rollout.tree.leaves
    events = leaf.results["reward"].events
    assert [event.value for event in events] == [-0.1, 1.0]
    assert [event.step_id for event in events] == [step.id for step in leaf.steps[:2]]
    called = [
        event
        for event in read_events(rollout.directory / "events.jsonl").events
        if event.kind == "environment_called"
    ]
    assert [(event.operation, event.result) for event in called] == [
        ("open", prompts[0]),
        ("call", "too high"),
        ("call", "open"),
    ]
    # The token of the tool server stays outside of the record.
    assert "Bearer" not in (rollout.directory / "events.jsonl").read_text()


@pytest.mark.parametrize("engine", ["live", "files"])
def test_two_children_repeat_the_calls_before_the_fork(
    run: Any, bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    if engine == "files":
        monkeypatch.setenv("BENCHFLOW_CRIU", "/nonexistent")
    group = ("--branch", "group", "--branch-at-call", 2, "--branch-n", 2)
    with vault_server() as vault, ScriptedLlm(player(21, 30)) as llm:
        record = run(vault, llm, *group)
    rollout = StoredRollout(tmp_path / record["directory"])
    assert sorted(leaf.reward or 0 for leaf in rollout.tree.leaves) == pytest.approx([-0.2, 0.9])
    (fork,) = [node for node in rollout.tree.nodes if node.branch]
    assert fork.branch is not None
    assert fork.branch.fidelity == "replay"
    assert {number for session, number in vault.tries if session == "s0"} == {50}
    assert sorted(vault.tries) == [
        ("s0", 50),
        *sorted((session, n) for session in ("s1", "s2") for n in played(vault, session)),
    ]
    assert [played(vault, session)[0] for session in ("s1", "s2")] == [50, 50]
    assert vault.open == set()
    for leaf in rollout.tree.leaves:
        values = [event.value for event in leaf.results["reward"].events]
        assert values[0] == -0.1
        ids = [event.step_id for event in leaf.results["reward"].events]
        assert ids == [step.id for step in leaf.steps[: len(values)]]
    assert "fork x2" in bench("rollout", "tree", tmp_path / record["directory"])


def played(vault: Vault, session: str) -> list[int]:
    return [number for one, number in vault.tries if one == session]


@pytest.mark.parametrize(
    ("snapshots", "require", "reason"),
    [("none", (), "no other session can get its state"), ("replay", ("state",), "snapshots")],
)
def test_a_fork_that_cannot_be_had_is_refused_before_the_agent_runs(
    tmp_path: Path, snapshots: str, require: tuple[str, ...], reason: str
) -> None:
    more = ("--branch-require", *require) if require else ()
    with vault_server() as vault, ScriptedLlm(player(21)) as llm:
        task = write_data_task(vault_task(3, vault.url, snapshots=snapshots), tmp_path)
        endpoint = ("--base-url", f"{llm.url}/v1", "--model", "scripted", "--agent", "policy")
        path = ("--environment-import-path", "vault_world:environment")
        done = subprocess.run(
            [BENCH, "run", task, *endpoint, *path, "--branch", "group", "--branch-n", "2", *more],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(SUPPORT), "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert llm.requests == []
    assert done.returncode == 4
    assert reason in done.stderr
    assert vault.started == 0


class BestOfGroup:
    """1 for the leaf with the most rewards of its world, 0 for the others."""

    name = "reward"

    async def score_group(
        self, task: Task, leaves: Sequence[RolloutNode]
    ) -> Sequence[VerifyResult]:
        del task
        best = max(leaf.reward or 0 for leaf in leaves)
        return [VerifyResult(reward=float(leaf.reward == best)) for leaf in leaves]


def test_the_rollouts_of_a_trainers_request_are_scored_together(tmp_path: Path) -> None:
    with vault_server() as vault, ScriptedLlm(player(21, 30)) as llm:
        task = write_data_task(vault_task(3, vault.url), tmp_path)
        config = run_config(
            agent="policy",
            base_url=f"{llm.url}/v1",
            model="scripted",
            upstream="vllm",
            environment_import_path="vault_world:environment",
        )
        server = LiveGroups(config, [task], tmp_path / "jobs", group_reward=BestOfGroup())
        group = asyncio.run(server.request("vault/3", 2))
    assert [str(leaf) for leaf in group.excluded] == []
    assert sorted(sample.reward for sample in group.samples) == [0, 1]
    (line,) = (tmp_path / "jobs" / "group-rewards.jsonl").read_text().splitlines()
    assert sorted(row["result"]["reward"] for row in json.loads(line)["leaves"]) == [0, 1]


def test_the_world_of_a_forked_tool_session_repeats_its_calls_in_each_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    config = run_config(environment_import_path="vault_world:environment")
    limits = SessionLimits(sessions=2)

    async def check(vault: Vault) -> None:
        task = write_data_task(vault_task(3, vault.url), tmp_path)
        async with open_session(task, config, limits=limits, jobs_dir=tmp_path) as session:
            await session.call("mcp__world__try", {"number": 50})
            for number, child in zip((75, 90), await session.fork(2), strict=True):
                await child.call("mcp__world__try", {"number": number})
                outcome = await child.submit()
                assert outcome is not None
                assert outcome.reward == pytest.approx(-0.2)
        tree = StoredRollout(tmp_path / session.id).tree
        assert (tree.status, len(tree.leaves)) == ("completed", 2)
        [fork] = [node.branch for node in tree.nodes if node.branch is not None]
        assert (fork.policy, fork.fidelity) == ("caller", "replay")
        assert sorted(played(vault, each) for each in ("s1", "s2")) == [[50, 75], [50, 90]]
        task = write_data_task(vault_task(3, vault.url, snapshots="none"), tmp_path / "none")
        async with open_session(task, config, limits=limits) as session:
            with pytest.raises(ForkRefusedError, match="no other session can get its state"):
                await session.fork(2)
            await session.call("mcp__world__try", {"number": 90})
            outcome = await session.submit()
            assert outcome is not None
            assert outcome.reward == pytest.approx(-0.1)

    with vault_server() as vault:
        asyncio.run(check(vault))
