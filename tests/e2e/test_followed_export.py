"""A rollout that runs is exported leaf by leaf, and the bytes are those of the finished one."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import StoreError
from benchflow_export import LeafStream
from benchflow_store import StoredRollout, follow_leaves


def test_the_leaves_of_a_growing_log_come_one_by_one(
    demo: dict[str, Any], tmp_path: Path, bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = bench(
        "rollout", "export", demo["directory"], "--format", "messages", "--follow", "--output", "-"
    )
    copy = tmp_path / "rollout"
    shutil.copytree(demo["directory"], copy)
    log = copy / "events.jsonl"
    first, *lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(first)
    monkeypatch.setattr("benchflow_store.leaf_follower.writer_of", lambda _: 1)
    written = [1]

    def write_next(_: float) -> None:
        with log.open("ab") as file:
            file.write(lines[written[-1] - 1])
        written.append(written[-1] + 1)

    moments: list[int] = []
    with LeafStream("messages") as stream:
        parts: list[bytes] = []
        for rollout, leaf in follow_leaves(copy, write_next):
            parts.append(stream.add(rollout, leaf))
            moments.append(written[-1])
        rest = b"".join(stream.finish([StoredRollout(copy).read_finished()]))
    assert len(parts) == len(StoredRollout(copy).tree.leaves) > 1
    assert rest == b""
    # Each leaf came before the log was complete.
    assert moments == sorted(set(moments))
    assert moments[-1] < len(lines) + 1
    # The demo ran its leaves in another order than the tree has them.
    assert sorted(b"".join(parts).splitlines()) == sorted(whole.encode().splitlines())
    # One answer is never that of the task's user.
    assert 0 < len(whole.splitlines()) <= len(parts)


def test_a_rollout_that_was_cut_short_is_not_followed_for_ever(
    demo: dict[str, Any], tmp_path: Path
) -> None:
    copy = tmp_path / "rollout"
    shutil.copytree(demo["directory"], copy)
    log = copy / "events.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(StoreError, match="cut short"):
        list(follow_leaves(copy))
