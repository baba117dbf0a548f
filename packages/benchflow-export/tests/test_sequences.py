"""What a trainer gets of a tree with tokens: each sampled token, and its advantage."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import (
    Exported,
    FinishedRollout,
    ModelCall,
    StoreError,
    TrainingOptions,
    UsageError,
)
from benchflow_export import load_exporter
from forked_calls import SYSTEM, USER, call, forked, recorded

A = 0.5 / (math.sqrt(0.5) + 1e-6)
"""The advantage of the return 1 beside the return 0."""


def export(
    name: str, rollouts: list[FinishedRollout], directory: Path, **options: object
) -> tuple[list[dict[str, Any]], Exported]:
    """Return the lines of the only file, and the counts."""
    exporter = load_exporter(name).with_options(TrainingOptions.model_validate(options))
    directory.mkdir()
    counts = exporter.export("job", rollouts, directory)
    [file] = directory.iterdir()
    return [json.loads(line) for line in file.read_text().splitlines()], counts


def with_temperature(calls: list[ModelCall]) -> list[ModelCall]:
    update = {"temperature": 0.7}
    return [each.model_copy(update={"request": {**each.request, **update}}) for each in calls]


def test_a_tree_is_one_group_of_atropos(tmp_path: Path) -> None:
    [body], counts = export("atropos", [forked(with_temperature(recorded()))], tmp_path / "x")
    assert body["tokens"] == [[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 8, 9]]
    assert body["masks"] == [
        [-100, -100, -100, 4, 5, -100, 7],
        [-100, -100, -100, 4, 5, -100, 9],
    ]
    assert body["scores"] == [1.0, 0.0]
    assert body["advantages"][0] == pytest.approx([0, 0, 0, A, A, 0, A])
    assert body["advantages"][1] == pytest.approx([0, 0, 0, -A, -A, 0, -A])
    assert body["inference_logprobs"] == [[1, 1, 1, -0.5, -0.5, 1, -0.5]] * 2
    assert [each["temperature"] for each in body["overrides"]] == [0.7, 0.7]
    assert [each["benchflow"]["leaf"] for each in body["overrides"]] == ["n2", "n3"]
    assert body["group_overrides"]["group_size"] == 2
    assert body["group_overrides"]["benchflow"]["shared_prefix"] == "per_leaf"
    assert (counts.trajectories, counts.unscored, counts.untrainable) == (2, 1, 0)


def test_a_shared_prefix_is_trained_on_once_with_the_mean_of_the_leaves(tmp_path: Path) -> None:
    source = [forked(recorded())]
    [body], _ = export("atropos", source, tmp_path / "x", shared_prefix="once")
    assert body["masks"] == [
        [-100, -100, -100, 4, 5, -100, 7],
        [-100, -100, -100, -100, -100, -100, 9],
    ]
    assert body["advantages"][0] == pytest.approx([0, 0, 0, 0, 0, 0, A])
    assert body["group_overrides"]["benchflow"]["shared_prefix"] == "once"


def test_a_token_above_all_forks_is_not_trained_on_by_process_credit(tmp_path: Path) -> None:
    [body], _ = export("atropos", [forked(recorded())], tmp_path / "x", advantage="process")
    assert body["masks"][0] == [-100] * 6 + [7]
    assert body["advantages"] == [[0.0] * 6 + [0.5], [0.0] * 6 + [-0.5]]
    assert body["inference_logprobs"][0] == [1.0] * 6 + [-0.5]


def test_the_trees_of_one_group_are_one_body_and_other_weights_another(tmp_path: Path) -> None:
    newer = [each.model_copy(update={"policy_version": "v2"}) for each in recorded()]
    source = [
        forked(recorded(), rollout_id="r1"),
        forked(newer, rollout_id="r2"),
        forked(recorded(), rollout_id="r3"),
    ]
    bodies, counts = export("atropos", source, tmp_path / "x")
    trees = [[each["benchflow"]["tree"] for each in body["overrides"]] for body in bodies]
    assert trees == [["r1", "r1", "r3", "r3"], ["r2", "r2"]]
    assert counts.trajectories == 6


def test_the_trainer_may_compute_the_advantages_unless_a_break_splits_a_leaf(
    tmp_path: Path,
) -> None:
    [body], _ = export("atropos", [forked(recorded())], tmp_path / "x", advantage="none")
    assert body["advantages"] is None
    calls = recorded()
    calls[1] = call("c2", calls[1].request["messages"], "left", [1, 99, 3, 4, 5, 6], [7])
    with pytest.raises(StoreError, match="several token sequences"):
        export("atropos", [forked(calls)], tmp_path / "y", advantage="none")
    [body], counts = export("atropos", [forked(calls)], tmp_path / "z")
    assert body["tokens"] == [[1, 2, 3, 4, 5], [1, 99, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 8, 9]]
    assert [sum(each != -100 for each in mask) for mask in body["masks"]] == [2, 1, 3]
    assert (counts.trajectories, counts.breaks) == (2, 1)


def test_a_datum_of_tinker_has_one_number_for_each_target(tmp_path: Path) -> None:
    lines, counts = export("tinker", [forked(recorded())], tmp_path / "x")
    [left, _] = lines
    assert left["datum"]["model_input"] == {
        "chunks": [{"type": "encoded_text", "tokens": [1, 2, 3, 4, 5, 6]}]
    }
    inputs = left["datum"]["loss_fn_inputs"]
    assert inputs["target_tokens"] == {"data": [2, 3, 4, 5, 6, 7], "dtype": "int64", "shape": [6]}
    assert inputs["logprobs"]["data"] == [0, 0, -0.5, -0.5, 0, -0.5]
    assert inputs["advantages"]["data"] == pytest.approx([0, 0, A, A, 0, A])
    assert (left["benchflow"]["shared_prefix"], counts.trajectories) == ("per_leaf", 2)


def test_an_answer_is_not_trained_on_if_its_prompt_was_not_recorded(tmp_path: Path) -> None:
    calls = recorded()
    calls[0] = call("c1", [SYSTEM, USER], "hello", [], [4])
    calls[1] = call("c2", calls[1].request["messages"], "left", [4, 6], [7], logprobs=None)
    calls[2] = call("c3", calls[2].request["messages"], "right", [4, 8], [9])
    lines, counts = export("tinker", [forked(calls)], tmp_path / "x")
    assert [line["benchflow"]["leaf"] for line in lines] == ["n3"]
    assert (counts.trajectories, counts.untrainable, counts.missing_logprobs) == (1, 1, 3)


@pytest.mark.parametrize("name", ["atropos", "tinker"])
def test_a_leaf_without_an_advantage_or_tokens_is_counted_and_left_out(
    name: str, tmp_path: Path
) -> None:
    alone = forked(recorded())
    for leaf in alone.tree.leaves[1:]:
        leaf.results.clear()
    lines, counts = export(name, [alone], tmp_path / "alone")
    assert (lines, counts.trajectories, counts.untrainable) == ([], 0, 1)
    lines, counts = export(name, [forked([])], tmp_path / "textual")
    assert (lines, counts.trajectories, counts.untrainable) == ([], 0, 2)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tinker", {"advantage": "none"}),
        ("v1-leaves", {"shared_prefix": "once"}),
        ("v1-graph", {"shared_prefix": "per_leaf"}),
        ("sft", {"shared_prefix": "once"}),
    ],
)
def test_an_option_that_a_format_cannot_express_is_refused(
    name: str, options: dict[str, str]
) -> None:
    with pytest.raises(UsageError):
        load_exporter(name).with_options(TrainingOptions.model_validate(options))


def test_art_gets_a_choice_for_each_message_that_is_trained_on(tmp_path: Path) -> None:
    [group], counts = export("art", [forked(recorded())], tmp_path / "x")
    left, right = group["trajectories"]
    assert [item.get("role", "choice") for item in left["messages_and_choices"]] == [
        "system",
        "user",
        "choice",
        "user",
        "choice",
    ]
    choice = left["messages_and_choices"][2]
    assert choice["message"] == {"role": "assistant", "content": "hello"}
    assert [(t["token"], t["logprob"]) for t in choice["logprobs"]["content"]] == [
        ("token_id:4", -0.5),
        ("token_id:5", -0.5),
    ]
    assert (left["reward"], right["reward"], counts.trajectories) == (1.0, 0.0, 2)
    assert group["metadata"]["shared_prefix"] == "per_leaf"
    scalars = (str, int, float, bool, type(None))
    assert all(isinstance(value, scalars) for value in left["metadata"].values())


def test_art_gets_a_shared_message_once_and_a_break_as_another_history(tmp_path: Path) -> None:
    calls = recorded()
    calls[1] = call("c2", calls[1].request["messages"], "left", [1, 99, 3, 4, 5, 6], [7])
    [group], _ = export("art", [forked(calls)], tmp_path / "x", shared_prefix="once")
    left, right = group["trajectories"]
    [after_break] = left["additional_histories"]
    assert "logprobs" in left["messages_and_choices"][2]
    assert "logprobs" in after_break["messages_and_choices"][-1]
    assert "logprobs" not in right["messages_and_choices"][2]


def test_art_compares_a_tree_or_all_trees_and_gets_no_group_of_one(tmp_path: Path) -> None:
    versions = [each.model_copy(update={"policy_version": "7"}) for each in recorded()]
    source = [forked(versions, rollout_id=f"r{n}") for n in range(2)]
    [group], _ = export("art", source, tmp_path / "inter")
    assert len(group["trajectories"]) == 4
    assert {t["initial_policy_version"] for t in group["trajectories"]} == {7}
    groups, _ = export("art", source, tmp_path / "intra", advantage="intra")
    assert [len(each["trajectories"]) for each in groups] == [2, 2]
    assert {each["metadata"]["baseline"] for each in groups} == {"tree"}
    alone = forked(recorded())
    alone.tree.leaves[0].results.clear()
    lines, counts = export("art", [alone], tmp_path / "alone")
    assert (lines, counts.untrainable) == ([], 1)


def test_agent_lightning_gets_a_span_for_each_call_and_one_for_the_reward(tmp_path: Path) -> None:
    [left, _], counts = export("agent-lightning", [forked(recorded())], tmp_path / "x")
    first, second, reward = left["spans"]
    assert [first["name"], second["name"], reward["name"]] == [
        "openai.chat.completion",
        "openai.chat.completion",
        "agentlightning.annotation",
    ]
    seen = [
        (s["attributes"]["prompt_token_ids"], s["attributes"]["response_token_ids"])
        for s in (first, second)
    ]
    assert seen == [([1, 2, 3], [4, 5]), ([1, 2, 3, 4, 5, 6], [7])]
    logprobs = json.loads(first["attributes"]["logprobs.content"])
    assert [each["logprob"] for each in logprobs] == [-0.5, -0.5]
    assert reward["attributes"]["agentlightning.reward.0.value"] == 1.0
    assert reward["start_time"] >= second["end_time"]
    assert len({span["span_id"] for span in left["spans"]}) == 3
    assert (left["metadata"]["shared_prefix"], counts.trajectories) == ("per_leaf", 2)


def test_agent_lightning_gets_a_shared_call_once_and_whole_prompts_after_a_break(
    tmp_path: Path,
) -> None:
    calls = recorded()
    calls[1] = call("c2", calls[1].request["messages"], "left", [1, 99, 3, 4, 5, 6], [7])
    lines, _ = export("agent-lightning", [forked(calls)], tmp_path / "x", shared_prefix="once")
    prompts = [
        [s["attributes"].get("prompt_token_ids") for s in line["spans"][:-1]] for line in lines
    ]
    assert prompts == [[[1, 2, 3], [1, 99, 3, 4, 5, 6]], [[1, 2, 3, 4, 5, 8]]]
