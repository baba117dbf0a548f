"""Forks of the policy agent at a model call: one prefix, and one answer for each child."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import benchflow as bf
import pytest
from benchflow_engine.scaffold import write_task
from benchflow_export import samples_of
from benchflow_kernel.errors import FidelityError
from benchflow_store import StoredRollout
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse

pytestmark = pytest.mark.timeout(300)

RUNNER = Path(__file__).with_name("killed_runner.py")
TASKS = Path(__file__).parents[2] / "benchmarks" / "clawsbench" / "tasks"
ARCHIVE = (TASKS / "archive-newsletters/solution/solve.sh").read_text()


class Sampler:
    """Look, then act, then end. Of the samples of the second call, only each third solves."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.acts = 0

    def __call__(self, request: ModelRequest) -> ModelReply:
        seen = request.tool_results
        if not seen:
            return shell("echo looked | tee look")
        if len(seen) == 1:
            with self._lock:
                self.acts += 1
                return shell(ARCHIVE if self.acts % 3 == 1 else f"echo {self.acts} > other")
        return ModelReply(text=f"Done after {self.acts} samples.")


def shell(command: str) -> ModelReply:
    return ModelReply(tools=(ToolUse("shell", {"command": command}),))


def run(bench: Any, llm: ScriptedLlm, *more: object, code: int = 0) -> Any:
    endpoint = ("--base-url", f"{llm.url}/v1", "--model", "scripted", "--upstream", "vllm")
    task = TASKS / "archive-newsletters"
    return bench("run", task, "--agent", "policy", *endpoint, *more, "--json", code=code)


@pytest.mark.parametrize("fidelity", ["live", "replay"])
def test_a_group_at_a_call_shares_its_prefix_token_for_token(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fidelity: str
) -> None:
    if fidelity == "replay":
        monkeypatch.setenv("BENCHFLOW_CRIU", "/nonexistent")
    sampler = Sampler()
    group = ("--branch", "group", "--branch-at-call", 2, "--branch-n", 3)
    with ScriptedLlm(sampler) as llm:
        record = run(bench, llm, *group, "--branch-require", fidelity)
        looks = sum(not request.tool_results for request in llm.requests)
    # The prefix was sampled once, and the call of the fork once for each child.
    assert (looks, sampler.acts) == (1, 3)
    rollout = StoredRollout(tmp_path / record["directory"])
    (fork,) = [node for node in rollout.tree.nodes if node.branch]
    assert fork.branch is not None
    assert (fork.branch.call, fork.branch.fidelity) == (2, fidelity)
    assert [leaf.reward for leaf in rollout.tree.leaves].count(1.0) == 1
    assert record["value"]["n"] == 3
    assert_equal_prefixes(rollout)
    assert_samples_share_their_prefix(rollout)
    shown = bench("rollout", "tree", tmp_path / record["directory"])
    assert f"fork x3 at model call 2 ({fidelity})" in shown


def assert_equal_prefixes(rollout: StoredRollout) -> None:
    """The calls of the fork have one prompt: the tokens of the call before, and what followed."""
    paths = [
        [rollout.calls[call] for step in leaf.steps for call in step.model_calls]
        for leaf in rollout.tree.leaves
    ]
    assert [len(path) for path in paths] == [3, 3, 3]
    assert len({path[0].id for path in paths}) == 1
    first = paths[0][0]
    assert first.prompt_token_ids
    assert first.completion_token_ids
    begin = first.prompt_token_ids + first.completion_token_ids
    prompts = {path[1].prompt_token_ids for path in paths}
    assert len(prompts) == 1
    assert all(prompt[: len(begin)] == begin for prompt in prompts if prompt)
    assert len({path[1].id for path in paths}) == 3
    assert not any(path[1].replayed for path in paths)


def assert_samples_share_their_prefix(rollout: StoredRollout) -> None:
    samples = samples_of(rollout.read_finished())
    assert len(samples) == 3
    at = [next(i for i, s in enumerate(x.spans) if s.call == x_call(x, 1)) for x in samples]
    assert len(set(at)) == 1
    assert len({tuple(span.id for span in x.spans[: at[0]]) for x in samples}) == 1
    assert len({x.spans[at[0]].id for x in samples}) == 3
    assert all(sample.breaks == 0 for sample in samples)
    for sample in samples:
        # The prefix is credited with the mean of the leaves, and the branch with its own return.
        (own,) = set(sample.advantages["intra"])
        assert own is not None
        assert (own > 0) == (sample.reward == 1.0)
        assert sample.advantages["process"][at[0]] is not None
        assert sample.advantages["process"][0] is None


def x_call(sample: Any, number: int) -> str:
    calls = [span.call for span in sample.spans if span.call is not None]
    return list(dict.fromkeys(calls))[number]


def test_an_agent_that_does_not_repeat_the_deferred_call_is_not_scored(bench: Any) -> None:
    once = ("--agent-env.BENCHFLOW_POLICY_ATTEMPTS", 1)
    group = ("--branch", "group", "--branch-at-call", 2, "--branch-n", 2)
    with ScriptedLlm(Sampler()) as llm:
        record = run(bench, llm, *group, *once, code=1)
        assert len(llm.requests) == 1
    assert (record["status"], record["reward"]) == ("failed", None)
    assert record["error"]["boundary"] == "snapshot"
    assert "model call 2, which was deferred for a fork" in record["error"]["message"]


def test_a_model_error_at_the_forked_call_costs_one_child_its_score(bench: Any) -> None:
    sampler = Sampler()

    def refuses_once(request: ModelRequest) -> ModelReply:
        if len(request.tool_results) == 1 and not refused:
            refused.append(request)
            return ModelReply(text="no", status=400)
        return sampler(request)

    refused: list[ModelRequest] = []
    group = ("--branch", "group", "--branch-at-call", 2, "--branch-n", 2)
    with ScriptedLlm(refuses_once) as llm:
        record = run(bench, llm, *group)
    assert (record["leaves"], record["value"]["n"], record["value"]["mean"]) == (2, 1, 1.0)


def test_a_finished_rollout_is_forked_at_a_call_without_a_checkpoint(
    bench: Any, tmp_path: Path
) -> None:
    sampler = Sampler()
    with ScriptedLlm(sampler) as llm:
        first = run(bench, llm)
        branch = ("rollout", "branch", tmp_path / first["directory"])
        record = bench(*branch, "--at-call", 2, "--n", 2, "--json")
        looks = sum(not request.tool_results for request in llm.requests)
        bench(*branch, "--at-call", 4, "--n", 2, code=2)
        bench(*branch, "--at-call", 2, "--n", 2, "--model", "other", code=2)
    # The calls before the fork were answered from the record.
    assert (looks, sampler.acts) == (1, 3)
    assert first["reward"] == 1.0
    assert (record["value"]["n"], record["value"]["mean"]) == (2, 0.0)
    rollout = StoredRollout(tmp_path / record["directory"])
    (fork,) = [node for node in rollout.tree.nodes if node.branch]
    assert fork.branch is not None
    assert (fork.branch.call, len(fork.children)) == (2, 2)
    (replayed,) = [call for call in rollout.calls.values() if call.replayed]
    samples = samples_of(rollout.read_finished())
    kinds = [[span.kind for span in sample.spans if span.call] for sample in samples]
    assert kinds == [["replayed", "sampled", "sampled"]] * 2
    assert {sample.spans[2].call for sample in samples} == {replayed.id}


@pytest.mark.parametrize("fidelity", ["live", "replay"])
def test_a_runner_killed_at_the_deferred_call_is_resumed_and_forks_there(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fidelity: str
) -> None:
    if fidelity == "replay":
        monkeypatch.setenv("BENCHFLOW_CRIU", "/nonexistent")
    sampler = Sampler()
    with ScriptedLlm(sampler) as llm:
        flags: dict[str, Any] = {
            "agent": "policy",
            "base_url": f"{llm.url}/v1",
            "model": "scripted",
            "upstream": "vllm",
            "keep": "all",
            "branch": "group",
            "branch_at_call": 2,
            "branch_n": 3,
        }
        # The fork is recorded while the agent waits to repeat its call; no child has started.
        task = TASKS / "archive-newsletters"
        command = [sys.executable, RUNNER, task, tmp_path / "jobs", "branched:", json.dumps(flags)]
        runner = subprocess.Popen([*map(str, command)], cwd=tmp_path, start_new_session=True)
        assert runner.wait(timeout=240) == -signal.SIGKILL
        assert sampler.acts == 0
        (cut,) = (path.parent for path in tmp_path.glob("jobs/*/events.jsonl"))
        record = bench("rollout", "resume", cut, "--json")
        looks = sum(not request.tool_results for request in llm.requests)
    began = record["began_from"]
    # Without a live checkpoint, the first call is answered from the record. It is not paid twice.
    assert (began["fidelity"], looks) == (fidelity, 1)
    assert sampler.acts == 3
    assert (record["leaves"], record["value"]["n"], record["status"]) == (3, 3, "completed")
    rollout = StoredRollout(tmp_path / record["directory"])
    (fork,) = [node for node in rollout.tree.nodes if node.branch]
    assert fork.branch is not None
    assert (fork.branch.call, fork.branch.fidelity) == (2, fidelity)
    left = bench("sandbox", "list", "--json")
    assert not [
        box for box in left if box["identity"]["rollout"] in (cut.name, rollout.tree.rollout_id)
    ]


def greet(request: ModelRequest) -> ModelReply:
    """Look, then greet, then end."""
    seen = request.tool_results
    if not seen:
        return shell("echo looked > /workspace/look; cat /workspace/look")
    if len(seen) == 1:
        # Each child has the files of the first call, and the output of no other child.
        act = "[ ! -e greeting.txt ] && cat look && echo 'hello, world' > greeting.txt"
        return shell(f"cd /workspace; {act}")
    return ModelReply(text="Done.")


@pytest.mark.slow
@pytest.mark.usefixtures("image")
def test_a_group_at_a_call_forks_in_docker_by_replay(bench: Any, tmp_path: Path) -> None:
    bench("tasks", "init", "greeter")
    group = ("--branch", "group", "--branch-at-call", 2, "--branch-n", 2)
    with ScriptedLlm(greet) as llm:
        endpoint = ("--base-url", f"{llm.url}/v1", "--model", "scripted", "--upstream", "vllm")
        docker = ("--sandbox", "docker", "--agent", "policy")
        record = bench("run", "greeter", *docker, *endpoint, *group, "--json")
        looks = sum(not request.tool_results for request in llm.requests)
    assert (looks, record["value"]["n"], record["value"]["mean"]) == (1, 2, 1.0)
    rollout = StoredRollout(tmp_path / record["directory"])
    (fork,) = [node for node in rollout.tree.nodes if node.branch]
    assert fork.branch is not None
    assert (fork.branch.call, fork.branch.fidelity) == (2, "replay")
    assert_samples_begin_alike(rollout)


@pytest.mark.slow
@pytest.mark.usefixtures("image")
def test_a_live_fork_at_a_call_is_refused_in_docker_before_the_agent_starts(
    tmp_path: Path,
) -> None:
    write_task(tmp_path / "greeter")
    with ScriptedLlm(greet) as llm:
        running = bf.run(
            tmp_path / "greeter",
            agent="policy",
            sandbox="docker",
            model="scripted",
            base_url=f"{llm.url}/v1",
            upstream="vllm",
            branch="group",
            branch_at_call=2,
            branch_n=2,
            branch_require="live",
        )
        with pytest.raises(
            FidelityError, match="sandbox 'docker' has no live snapshots"
        ) as refused:
            asyncio.run(running)
        assert not llm.requests
    assert "require a lower fidelity" in str(refused.value.hint)


def assert_samples_begin_alike(rollout: StoredRollout) -> None:
    """Both samples have the spans of the first call, and a call of their own at the fork."""
    one, other = samples_of(rollout.read_finished())
    assert one.spans[0].id == other.spans[0].id
    assert x_call(one, 0) == x_call(other, 0)
    assert x_call(one, 1) != x_call(other, 1)
    assert (one.breaks, other.breaks) == (0, 0)
