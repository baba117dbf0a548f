"""Trees as Verifiers v1 traces, judged by the package that defines the format."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from benchflow.cli.rollout import export
from benchflow_contracts import TrainingOptions
from judge_package import install, succeed

JUDGE = Path(__file__).with_name("check_traces.py")
PACKAGE = "verifiers==0.4.0"


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the pinned package; return its Python."""
    return install(PACKAGE, tmp_path_factory.mktemp("judge"))


def read_by_package(judge: Path, rollout: Path, cwd: Path) -> dict[str, Any]:
    """Export a rollout in each form; return what the package reads."""
    forms = [cwd / f"{form}.jsonl" for form in ("leaves", "graph", "flat")]
    for output in forms:
        every = TrainingOptions(counterfactual=True)
        export(str(rollout), output=output, format=f"v1-{output.stem}", options=every)
    leaves, graph, flat = (output.name for output in forms)
    said = succeed(judge, "-I", JUDGE, leaves, graph, "--flat", flat, cwd=cwd)
    seen: dict[str, Any] = json.loads(said)
    return seen


@pytest.mark.timeout(300)
def test_the_package_reads_a_forked_rollout_as_leaves_as_a_graph_and_flat(
    demo: dict[str, Any], judge: Path, tmp_path: Path
) -> None:
    seen = read_by_package(judge, demo["directory"], tmp_path)

    [leaves], [graph] = seen["leaves.jsonl"], seen["graph.jsonl"]
    assert leaves["group"] == graph["group"]
    assert leaves["traces"] == seen["flat"]
    rewards = [trace["reward"] for trace in leaves["traces"]]
    assert sorted(rewards) == [0.0, 0.25, 1.0]
    [whole] = graph["traces"]
    # V of the root: the task's user gives one of the three answers.
    assert whole["reward"] == 1.0
    # The graph's branches are the leaves' conversations, message for message.
    assert sorted(branch["texts"] for branch in whole["branches"]) == sorted(
        branch["texts"] for trace in leaves["traces"] for branch in trace["branches"]
    )


@pytest.mark.timeout(300)
def test_a_forked_policy_trains_on_the_tokens_it_sampled_and_its_prefix_is_one(
    forked_policy: Path, judge: Path, tmp_path: Path
) -> None:
    seen = read_by_package(judge, forked_policy, tmp_path)

    [leaves], [graph] = seen["leaves.jsonl"], seen["graph.jsonl"]
    samples = [branch for trace in leaves["traces"] for branch in trace["branches"]]
    [whole] = graph["traces"]
    assert len(samples) == len(whole["branches"]) == 3
    by_tokens = sorted(samples, key=lambda branch: branch["token_ids"])
    assert by_tokens == sorted(whole["branches"], key=lambda branch: branch["token_ids"])
    for sample in samples:
        assert sum(sample["mask"]) > 0
        text = bytes(sample["token_ids"]).decode()
        sampled = bytes(
            token for token, on in zip(sample["token_ids"], sample["mask"], strict=True) if on
        ).decode()
        assert "Only you can tell." in sampled
        assert "Booked." in sampled
        assert text.startswith("<|system|>")
    # Up to the answer the three are the same tokens, sampled once.
    columns = zip(*(sample["token_ids"] for sample in samples), strict=False)
    prefix = itertools.takewhile(lambda column: len(set(column)) == 1, columns)
    assert b"Only you can tell." in bytes(column[0] for column in prefix)
