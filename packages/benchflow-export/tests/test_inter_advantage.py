"""Trainer rows of a job get the advantage over all trees of their prompt."""

import statistics
from typing import Any

import pytest
from benchflow_export import with_inter_advantage


def row(
    task: str, rollout: str, leaf: str, reward: float | None, **credit: float
) -> dict[str, Any]:
    info = {"task_id": task, "rollout_id": rollout, "leaf": leaf, "advantage": credit or None}
    return {"info": info, "reward": reward}


def test_the_group_is_every_scored_leaf_of_every_tree_of_the_task():
    rows = [
        row("t", "r1", "n1", 1.0, intra=0.7, step=0.5),
        row("t", "r1", "n2", 0.0, intra=-0.7),
        row("t", "r2", "n1", 0.0),
        row("t", "r2", "n2", None),
        row("alone", "r3", "n1", 1.0, intra=0.7),
        row("alone", "r3", "n2", 0.0),
    ]
    made = list(with_inter_advantage(lambda: iter(rows)))
    std = statistics.stdev([1.0, 0.0, 0.0]) + 1e-6
    given = [one["info"]["advantage"] for one in made]
    assert [one and one.get("inter") for one in given[:3]] == pytest.approx(
        [(1 - 1 / 3) / std, (0 - 1 / 3) / std, (0 - 1 / 3) / std]
    )
    assert (given[0]["intra"], given[0]["step"]) == (0.7, 0.5)
    # An unscored leaf is in no group, and a tree on its own has none.
    assert given[3] is None
    assert given[4] == {"intra": 0.7}
    assert given[5] is None
