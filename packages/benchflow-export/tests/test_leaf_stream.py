"""An export leaf by leaf gives the bytes of the whole export, and each leaf at once."""

import gc
import json
import tracemalloc
from pathlib import Path

import pytest
from benchflow_contracts import FinishedRollout, TrainingOptions, UsageError, begin_export
from benchflow_export import LeafStream, load_exporter, write_export
from benchflow_export.leaf_messages import leaf_messages
from benchflow_testing.fakes import (
    FakeExporter,
    fake_finished_rollout,
    fake_growing_rollout,
    fake_hostile_rollout,
)


def streamed(name: str, rollout: FinishedRollout) -> tuple[list[bytes], bytes]:
    """Return the bytes of each leaf, and those of the end."""
    with LeafStream(name) as stream:
        parts = [stream.add(each, leaf) for each, leaf in fake_growing_rollout(rollout)]
        rest = b"".join(stream.finish([rollout]))
        assert stream.counts is not None
        assert stream.counts.trajectories == 2
    return parts, rest


def test_each_leaf_is_given_when_it_is_added_and_twice_the_same(tmp_path: Path) -> None:
    write_export("messages", [fake_finished_rollout()], tmp_path / "whole.jsonl")
    parts, rest = streamed("messages", fake_finished_rollout())
    assert [json.loads(part)["reward"] for part in parts] == [1, 0.5]
    assert rest == b""
    assert b"".join(parts) == (tmp_path / "whole.jsonl").read_bytes()
    assert streamed("messages", fake_finished_rollout())[0] == parts
    [first, _] = map(json.loads, parts)
    assert [message["role"] for message in first["messages"]][:2] == ["user", "assistant"]


@pytest.mark.parametrize("name", ["sft", "v1-leaves", "adp"])
def test_a_format_that_needs_whole_rollouts_is_given_at_the_end(name: str, tmp_path: Path) -> None:
    write_export(name, [fake_finished_rollout()], tmp_path / "whole.jsonl")
    parts, rest = streamed(name, fake_finished_rollout())
    assert parts == [b"", b""]
    assert rest == (tmp_path / "whole.jsonl").read_bytes()


def test_a_leaf_that_was_not_added_is_written_at_the_end() -> None:
    rollout = fake_finished_rollout()
    with LeafStream("messages") as stream:
        (early, leaf), *_ = fake_growing_rollout(rollout)
        first = stream.add(early, leaf)
        assert stream.add(early, leaf) == b""
        second = b"".join(stream.finish([rollout]))
    assert [json.loads(line)["reward"] for line in (first, second)] == [1, 0.5]


def test_an_exporter_that_knows_no_leaves_goes_on_working(tmp_path: Path) -> None:
    rollout = fake_finished_rollout()
    writer = begin_export(FakeExporter(), "job", tmp_path)
    for each, leaf in fake_growing_rollout(rollout):
        writer.add(each, leaf)
    assert list(tmp_path.iterdir()) == []
    assert writer.finish([rollout]).trajectories == 2
    assert (tmp_path / "rewards.txt").exists()


def test_options_of_tokens_are_refused() -> None:
    with pytest.raises(UsageError, match="takes only"):
        leaf_messages().with_options(TrainingOptions(require_tokens=True))


def test_the_memory_does_not_grow_with_the_leaves(tmp_path: Path) -> None:
    """A leaf of 3 MB is written 20 times, and is never held twice."""
    writer = begin_export(load_exporter("messages"), "job", tmp_path)
    rollouts = (fake_hostile_rollout(f"big__{number}") for number in range(20))
    peaks: list[int] = []
    # The collections below pass over the objects of all other tests.
    gc.freeze()
    tracemalloc.start()
    try:
        for rollout in rollouts:
            writer.add(rollout, rollout.tree.leaves[0])
            peaks.append(tracemalloc.get_traced_memory()[1])
            del rollout
            # Nodes know their parents and children.
            gc.collect()
    finally:
        tracemalloc.stop()
        gc.unfreeze()
    assert (tmp_path / "messages.jsonl").stat().st_size > 20 * 3_000_000
    assert peaks[-1] < 1.2 * peaks[2]
