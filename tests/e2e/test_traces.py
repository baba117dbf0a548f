"""Trees as Verifiers v1 traces, judged by the package that defines the format."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from judge_package import install, succeed
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse

TASKS = Path(__file__).parents[2] / "benchmarks" / "clawsbench" / "tasks"
EVENTS = ["evt-10", "evt-11", "evt-12"]
JUDGE = Path(__file__).with_name("check_traces.py")
PACKAGE = "verifiers==0.4.0"


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the pinned package; return its Python."""
    return install(PACKAGE, tmp_path_factory.mktemp("judge"))


@pytest.mark.timeout(300)
def test_the_package_reads_a_forked_rollout_as_leaves_as_a_graph_and_flat(
    bench: Any, judge: Path, tmp_path: Path
) -> None:
    demo = tmp_path / bench("demo", "--json")["directory"]
    for form in ("leaves", "graph", "flat"):
        bench("rollout", "export", demo, "--output", f"{form}.jsonl", "--format", f"v1-{form}")

    said = succeed(
        judge, "-I", JUDGE, "leaves.jsonl", "graph.jsonl", "--flat", "flat.jsonl", cwd=tmp_path
    )
    seen = json.loads(said)

    [leaves], [graph] = seen["leaves.jsonl"], seen["graph.jsonl"]
    assert leaves["group"] == graph["group"]
    assert leaves["traces"] == seen["flat"]
    rewards = [trace["reward"] for trace in leaves["traces"]]
    assert sorted(rewards) == [0.0, 0.25, 1.0]
    [whole] = graph["traces"]
    assert whole["reward"] == pytest.approx(sum(rewards) / 3)
    # The graph's branches are the leaves' conversations, message for message.
    assert sorted(branch["texts"] for branch in whole["branches"]) == sorted(
        branch["texts"] for trace in leaves["traces"] for branch in trace["branches"]
    )


def book(request: ModelRequest) -> ModelReply:
    """Ask which event is meant, and change the one that the user names."""
    seen = request.tool_results
    if not seen:
        ask = {"question": "Which review with Dana?", "options": EVENTS}
        return ModelReply(text="Only you can tell.", tools=(ToolUse("ask_user", ask),))
    if len(seen) == 1:
        chosen = next(event for event in EVENTS if event in seen[0])
        room = "room-maple@harborlight.example"
        return ModelReply(
            tools=(
                ToolUse("shell", {"command": f"claw-gcal update {chosen} --add-attendee {room}"}),
            )
        )
    return ModelReply(text="Booked.")


@pytest.mark.timeout(300)
def test_a_forked_policy_trains_on_the_tokens_it_sampled_and_its_prefix_is_one(
    bench: Any, judge: Path, tmp_path: Path
) -> None:
    with ScriptedLlm(book) as llm:
        endpoint = ("--base-url", f"{llm.url}/v1", "--model", "scripted", "--upstream", "vllm")
        task = TASKS / "book-the-review-room"
        made = bench("run", task, "--agent", "policy", *endpoint, "--branch", "ask-user", "--json")
    rollout = tmp_path / made["directory"]
    for form in ("leaves", "graph", "flat"):
        bench("rollout", "export", rollout, "--output", f"{form}.jsonl", "--format", f"v1-{form}")

    said = succeed(
        judge, "-I", JUDGE, "leaves.jsonl", "graph.jsonl", "--flat", "flat.jsonl", cwd=tmp_path
    )
    seen = json.loads(said)

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
