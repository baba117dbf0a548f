"""Logs that BenchFlow did not write become rollouts. The logs here are compressed by deflate."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from benchflow_adapters_inspect.export import InspectExporter
from benchflow_adapters_inspect.logs import LogFile, import_log
from benchflow_contracts import FinishedRollout, RolloutNode, StoreError
from benchflow_testing.fakes import fake_finished_rollout
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SAMPLE: dict[str, Any] = {
    "id": "one",
    "epoch": 2,
    "input": "Add 2 and 2.",
    "messages": [
        {"id": "m1", "role": "system", "content": "Be brief."},
        {"id": "m2", "role": "user", "content": "attachment://long"},
        {
            "id": "m3",
            "role": "assistant",
            "content": [{"type": "reasoning", "reasoning": "Hm."}, {"type": "text", "text": "I"}],
            "tool_calls": [{"id": "c", "function": "add", "arguments": {"a": 2}}],
        },
        {"id": "m4", "role": "tool", "tool_call_id": "c", "content": "4"},
        {"id": "m5", "role": "assistant", "content": "4"},
    ],
    "attachments": {"long": "Add 2 and 2."},
    "scores": {"match": {"value": "C"}, "style": {"value": {"length": 0.5}}, "odd": {"value": "x"}},
    "events": [
        {
            "event": "model",
            "timestamp": "2026-01-01T00:00:01+00:00",
            "completed": "2026-01-01T00:00:03+00:00",
            "output": {
                "choices": [{"message": {"id": "m3"}}],
                "usage": {"input_tokens": 5, "output_tokens": 2, "input_tokens_cache_read": 3},
            },
        }
    ],
    "completed_at": "2026-01-01T00:00:09+00:00",
}


BRANCHED: list[dict[str, Any]] = [
    {"event": "model", "output": {"choices": [{"message": {"id": "m3"}}]}},
    {"event": "anchor", "anchor_id": "a"},
    {"event": "span_begin", "id": "s1", "type": "branch", "name": "try again"},
    {"event": "branch", "span_id": "s1", "from_anchor": "a"},
    {"event": "span_begin", "id": "s2", "parent_id": "s1", "type": "agent", "name": "x"},
    {
        "event": "model",
        "span_id": "s2",
        "output": {
            "choices": [
                {
                    "message": {
                        "id": "b1",
                        "content": "Is it 5?",
                        "tool_calls": [{"id": "c2", "function": "ask", "arguments": {}}],
                    }
                }
            ]
        },
    },
    {"event": "tool", "span_id": "s2", "id": "c2", "function": "ask", "result": "no"},
    {
        "event": "model",
        "span_id": "s2",
        "output": {"choices": [{"message": {"id": "b2", "content": "5"}}]},
    },
    {"event": "score", "span_id": "s1", "scorer": "match", "score": {"value": "I"}},
    {"event": "model", "output": {"choices": [{"message": {"id": "m5"}}]}},
]


def test_a_sample_is_a_tree_with_a_node_for_each_answer(tmp_path: Path) -> None:
    rollout = _imported(tmp_path, SAMPLE)
    (leaf,) = rollout.tree.leaves
    first, second = leaf.steps
    assert first.prompt == "Be brief.\n\nAdd 2 and 2."
    assert (first.reasoning, first.message) == ("Hm.", "I")
    assert first.tool_calls[0].raw_input == {"a": 2}
    assert first.observations[0].content == "4"
    assert first.finished_at - first.started_at == 2
    assert first.usage is not None
    assert (first.usage.input_tokens, first.usage.cached_tokens) == (8, 3)
    assert (second.message, second.stop_reason) == ("4", "end_turn")


def test_the_first_score_is_the_reward_and_a_word_is_unscored(tmp_path: Path) -> None:
    (leaf,) = _imported(tmp_path, SAMPLE).tree.leaves
    assert {name: result.reward for name, result in leaf.results.items()} == {
        "reward": 1.0,
        "style": 0.5,
        "odd": None,
    }


def test_a_sample_with_an_error_has_it_on_its_leaf_and_no_reward(tmp_path: Path) -> None:
    sample = {**SAMPLE, "scores": None, "error": {"message": "Boom"}}
    rollout = _imported(tmp_path, sample)
    (leaf,) = rollout.tree.leaves
    assert leaf.error is not None
    assert (leaf.error.message, leaf.reward, rollout.tree.status) == ("Boom", None, "ungraded")


def test_an_imported_rollout_is_marked_and_has_no_recorded_call(tmp_path: Path) -> None:
    rollout = _imported(tmp_path, SAMPLE)
    assert rollout.tree.meta["imported"] == {"format": "inspect", "log": "log.json", "epoch": 2}
    assert rollout.calls == {}
    out = tmp_path / "again"
    out.mkdir()
    InspectExporter().export("job", iter([rollout]), out)
    (path,) = out.glob("*.eval")
    (sample,) = LogFile(path).samples()
    assert sample["metadata"]["benchflow"]["on_policy"] is False


def test_our_own_log_is_imported_as_the_same_tree(tmp_path: Path) -> None:
    original = fake_finished_rollout()
    InspectExporter().export("job", iter([original]), tmp_path)
    (path,) = tmp_path.glob("*.eval")
    (rollout,) = import_log(path)
    assert [leaf.reward for leaf in rollout.tree.leaves] == [None, 1.0, 0.5]
    assert _shape(rollout.tree.root) == _shape(original.tree.root)
    assert "lost_branches" not in str(rollout.tree.meta["imported"])


def test_the_branches_of_a_timeline_are_branches_of_the_tree(tmp_path: Path) -> None:
    (leaf, other) = _imported(tmp_path, {**SAMPLE, "events": BRANCHED}).tree.leaves
    assert [step.message for step in leaf.steps] == ["I", "4"]
    assert [step.message for step in other.steps] == ["I", "Is it 5?", "5"]
    assert other.steps[1].observations[0].content == "no"
    assert other.steps[-1].stop_reason == "end_turn"
    assert (leaf.reward, other.reward) == (1.0, 0.0)


def test_a_branch_without_its_anchor_is_left_out_and_counted(tmp_path: Path) -> None:
    events = [event for event in BRANCHED if event["event"] != "anchor"]
    rollout = _imported(tmp_path, {**SAMPLE, "events": events})
    assert len(rollout.tree.leaves) == 1
    assert "'lost_branches': 1" in str(rollout.tree.meta["imported"])


def _shape(node: RolloutNode) -> list[Any]:
    """Return the messages below a node, as a nested list. Children are in no order."""
    said = "" if node.step is None else node.step.message
    return [said, *sorted((_shape(child) for child in node.children), key=str)]


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b'{"eval": 1}', b"[" * 100_000])
def test_a_file_that_is_not_a_log_is_an_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "log.json"
    path.write_bytes(data)
    with pytest.raises(StoreError, match=r"log\.json"):
        list(import_log(path))


def test_the_samples_of_an_archive_have_the_order_of_inspect_and_not_of_their_ends(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.eval"
    names = ("b_epoch_1", "10_epoch_1", "9_epoch_2", "9_epoch_1", "a_epoch_2", "odd")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.json", json.dumps({"eval": {}}))
        for name in names:
            archive.writestr(f"samples/{name}.json", json.dumps({"name": name}))
    found = [sample["name"] for sample in LogFile(path).samples()]
    assert found == ["odd", "9_epoch_1", "10_epoch_1", "b_epoch_1", "9_epoch_2", "a_epoch_2"]


def test_a_zip_without_a_header_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other.txt", "x")
    with pytest.raises(StoreError, match="not a log of Inspect"):
        LogFile(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(
    place=st.integers(0, len(BRANCHED) - 1),
    key=st.sampled_from(["event", "id", "span_id", "output", "anchor_id", "from_anchor", "score"]),
    value=JSON,
)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_event_of_a_wrong_type_never_breaks_the_import(
    tmp_path: Path, place: int, key: str, value: object
) -> None:
    events = [{**each, key: value} if i == place else each for i, each in enumerate(BRANCHED)]
    leaves = _imported(tmp_path, {**SAMPLE, "events": events}).tree.leaves
    assert any([step.message for step in leaf.steps] == ["I", "4"] for leaf in leaves)


@given(key=st.sampled_from(sorted(SAMPLE)), value=JSON)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_value_of_a_wrong_type_never_breaks_the_import(
    tmp_path: Path, key: str, value: object
) -> None:
    rollout = _imported(tmp_path, {**SAMPLE, key: value})
    assert len(rollout.tree.leaves) == 1


def _imported(directory: Path, sample: dict[str, Any]) -> FinishedRollout:
    path = directory / "log.json"
    header = {"version": 2, "eval": {"eval_id": "e", "task": "sums", "model": "m/x"}}
    path.write_text(json.dumps({**header, "samples": [sample]}))
    (rollout,) = import_log(path)
    return rollout
