"""Trees as data of other trainers, judged by the packages that read them: `nox -s trainers`."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import FinishedRollout, Sample, TrainingOptions
from benchflow_export import samples_of, write_export
from benchflow_export.atropos_sender import AtroposSender, read_atropos_groups
from benchflow_store import StoredRollout
from judge_package import install, install_workspace, succeed

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(900)]
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def tree(forked_policy: Path) -> FinishedRollout:
    """A tree of three leaves, as if its user gave each answer equally often."""
    rollout = StoredRollout(forked_policy).read_finished()
    for node in rollout.tree.nodes:
        if node.branch is not None and node.branch.answers:
            uniform = dict.fromkeys(node.branch.answers, 1 / len(node.branch.answers))
            node.branch = node.branch.model_copy(update={"answers": uniform})
    return rollout


@pytest.fixture(scope="module")
def samples(tree: FinishedRollout) -> list[Sample]:
    """The samples of the tree."""
    return samples_of(tree)


def exported(tree: FinishedRollout, name: str, cwd: Path, **options: Any) -> Path:
    output = cwd / f"{name}.jsonl"
    counts = write_export(name, [tree], output, TrainingOptions(**options))
    assert (counts.trajectories, counts.untrainable) == (3, 0)
    return output


def trained(sample: Sample, estimator: Any) -> list[tuple[int, float, float]]:
    """Each trained token of a sample without a break, its log-probability and its advantage."""
    [sequence] = sample.sequences(estimator)
    columns = (sequence.token_ids, sequence.logprobs, sequence.token_advantages)
    rows = zip(*columns, sequence.loss_mask, strict=True)
    return [(t, logprob or 0.0, advantage or 0.0) for t, logprob, advantage, on in rows if on]


def test_tinker_holds_the_tokens_log_probabilities_and_advantages_of_each_sample(
    tree: FinishedRollout, samples: list[Sample], tmp_path: Path
) -> None:
    python = install("tinker==0.38.0", tmp_path)
    install_workspace(python, "benchflow-export")
    file = exported(tree, "tinker", tmp_path, advantage="intra")
    data = json.loads(succeed(python, "-I", HERE / "check_tinker.py", file, cwd=tmp_path))
    assert len(data) == len(samples) == 3
    for datum, sample in zip(data, samples, strict=True):
        [sequence] = sample.sequences()
        assert [*datum["tokens"], datum["target_tokens"][-1]] == sequence.token_ids
        rows = zip(datum["target_tokens"], datum["logprobs"], datum["advantages"], strict=True)
        seen = [row for row in rows if row[2] != 0]
        assert seen == [pytest.approx(each, abs=1e-6) for each in trained(sample, "intra")]


def test_art_trains_on_the_sampled_tokens_of_each_sample(
    tree: FinishedRollout, samples: list[Sample], tmp_path: Path
) -> None:
    python = install("openpipe-art==0.5.18", tmp_path)
    install_workspace(python, "benchflow-export")
    file = exported(tree, "art", tmp_path)
    [group] = json.loads(succeed(python, "-I", HERE / "check_art.py", file, cwd=tmp_path))
    assert [each["reward"] for each in group] == [sample.reward for sample in samples]
    for trajectory, sample in zip(group, samples, strict=True):
        tokens = [tuple(each) for choice in trajectory["sampled"] for each in choice]
        assert tokens == [each[:2] for each in trained(sample, "none")]
        assert trajectory["more"] == []
        texts = [span.message.get("content") or "" for span in sample.spans]
        assert trajectory["texts"] == texts


def test_agent_lightning_reads_each_call_and_the_reward(
    tree: FinishedRollout, samples: list[Sample], tmp_path: Path
) -> None:
    python = install("agentlightning==0.3.0", tmp_path)
    file = exported(tree, "agent-lightning", tmp_path)
    check = HERE / "check_agent_lightning.py"
    rollouts = json.loads(succeed(python, "-I", check, file, cwd=tmp_path).splitlines()[-1])
    assert [each["final_reward"] for each in rollouts] == [sample.reward for sample in samples]
    for rollout, sample in zip(rollouts, samples, strict=True):
        calls = [span for span in sample.spans if span.is_trainable]
        *before, last = rollout["rewards"]
        assert ({*before}, last) == ({None}, sample.reward)
        [sequence] = sample.sequences()
        for call, span in zip(rollout["calls"], calls, strict=True):
            begin = span.start + span.scaffold
            assert call["prompt"] == sequence.token_ids[:begin]
            assert call["response"] == sequence.token_ids[begin : span.end]
            assert call["logprobs"] == list(span.logprobs)


def test_the_last_verifiers_with_legacy_rows_reads_v1_episodes_too(
    tree: FinishedRollout, samples: list[Sample], tmp_path: Path
) -> None:
    files = [exported(tree, name, tmp_path) for name in ("v1-leaves", "v1-graph", "v1-flat")]
    leaves, graph, flat = files
    python = install("verifiers==0.3.1", tmp_path)
    check = (HERE / "check_traces.py", leaves, graph, "--flat", flat)
    seen = json.loads(succeed(python, "-I", *check, cwd=tmp_path))
    [episode], [whole] = seen["v1-leaves.jsonl"], seen["v1-graph.jsonl"]
    assert episode["traces"] == seen["flat"]
    for trace, branch, sample in zip(
        episode["traces"], whole["traces"][0]["branches"], samples, strict=True
    ):
        [sequence] = sample.sequences()
        assert trace["reward"] == sample.reward
        for made in (trace["branches"][0], branch):
            assert made["token_ids"] == sequence.token_ids
            assert made["mask"] == sequence.loss_mask
            assert made["logprobs"] == [value or 0.0 for value in sequence.logprobs]


def prime_rl(leaves: Path, graph: Path, sft: Path, cwd: Path) -> dict[str, Any]:
    """Return what the prime-rl in the directory $BENCHFLOW_PRIME_RL would train on."""
    source = os.environ.get("BENCHFLOW_PRIME_RL")
    if source is None:
        pytest.skip("prime-rl is not on the index: set BENCHFLOW_PRIME_RL to a checkout of it")
    python = install("verifiers==0.4.0", cwd, "msgspec", "numpy")
    check = (HERE / "check_prime_rl.py", source, leaves, graph, sft)
    seen: dict[str, Any] = json.loads(succeed(python, "-I", *check, cwd=cwd))
    return seen


def test_prime_rl_trains_on_the_tokens_and_advantages_of_each_sample(
    tree: FinishedRollout, samples: list[Sample], tmp_path: Path
) -> None:
    files = [exported(tree, name, tmp_path) for name in ("v1-leaves", "v1-graph", "sft")]
    seen = prime_rl(*files, tmp_path)
    sequences = [sequence for sample in samples for sequence in sample.sequences("intra")]
    assert len(sequences) == len(seen["leaves"]) == len(seen["scored"]) == 3
    for stamped, scored, sequence in zip(seen["leaves"], seen["scored"], sequences, strict=True):
        for made in (stamped, scored):
            assert made["token_ids"] == sequence.token_ids
            assert made["mask"] == sequence.loss_mask
            assert made["logprobs"] == [value or 0.0 for value in sequence.logprobs]
        assert stamped["advantages"] == [value or 0.0 for value in sequence.token_advantages]
    # Its hierarchical baseline over the episode is V of the root.
    for scored, sample in zip(seen["scored"], samples, strict=True):
        expected = sample.reward - sample.values[sample.nodes[0]]
        trained = [a for a, on in zip(scored["advantages"], scored["mask"], strict=True) if on]
        assert trained == pytest.approx([expected] * sum(scored["mask"]))
    # It trains on a shared message in the first branch of a graph that has it.
    distinct = {span.id: len(span.logprobs) for sample in samples for span in sample.spans}
    assert sum(sum(each["mask"]) for each in seen["graph"]) == sum(distinct.values())
    assert [each["token_ids"] for each in seen["graph"]] == [s.token_ids for s in sequences]
    for row, sample in zip(seen["sft"], samples, strict=True):
        said = [span.message.get("content") or "" for span in sample.spans if span.is_trainable]
        assert all(text in row["trained"] for text in said)
        assert sample.instruction in row["text"]
        assert sample.instruction not in row["trained"]


@contextmanager
def atropos_server(python: Path, cwd: Path) -> Iterator[int]:
    """Start atroposlib's `run-api`; yield its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    command = [python.with_name("run-api"), "--host", "127.0.0.1", "--port", str(port)]
    with (cwd / "server.log").open("w") as log:
        server = subprocess.Popen(
            command, cwd=cwd, stdout=log, stderr=log, env={**os.environ, "HF_HUB_OFFLINE": "1"}
        )
        try:
            _wait_for(port)
            yield port
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(timeout=30)


def test_an_atropos_trainer_gets_the_groups_that_the_sender_pushed(
    tree: FinishedRollout, samples: list[Sample], tmp_path: Path
) -> None:
    python = install("atroposlib==0.4.0", tmp_path)
    file = exported(tree, "atropos", tmp_path, advantage="intra")
    [body] = read_atropos_groups(file)
    with atropos_server(python, tmp_path) as port:
        url = f"http://127.0.0.1:{port}"
        check = [python, "-I", HERE / "check_atropos.py", str(port), "3", "2"]
        with subprocess.Popen([*map(str, check)], stdout=subprocess.PIPE, text=True) as trainer:
            assert trainer.stdout is not None
            with AtroposSender(url, group_size=3, max_token_length=4096, max_queue=1) as sender:
                assert trainer.stdout.readline() == "started\n"
                assert sender.send_all([body, body]).groups == 2
            batches = json.loads(trainer.stdout.read())
    assert [len(batch) for batch in batches] == [1, 1]
    for [group] in batches:
        assert {key: group[key] for key in body} == body
        for at, sample in enumerate(samples):
            [sequence] = sample.sequences()
            assert group["tokens"][at] == sequence.token_ids
            rows = zip(
                group["masks"][at],
                group["inference_logprobs"][at],
                group["advantages"][at],
                strict=True,
            )
            seen = [row for row in rows if row[0] != -100]
            assert seen == [pytest.approx(each) for each in trained(sample, "intra")]


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the server did not listen")
