"""Each trainer gets, for each leaf, the probability of the answers on its path."""

import asyncio
import sys
from types import ModuleType, SimpleNamespace

import pytest
from benchflow_adapters_trainers import GroupWorker
from benchflow_adapters_trainers.response import requested_rows
from benchflow_export import RolloutGroup, StoredGroups, TrainerOptions
from forked_calls import forked, recorded

ANSWERS = {"a": 0.75, "b": 0.25, "c": 0.0}
ALWAYS = {"a": 1.0, "b": 0.0, "c": 0.0}


def group_of(answers: dict[str, float]) -> RolloutGroup:
    stored = StoredGroups(lambda: [forked(recorded(), answers=answers)])
    return asyncio.run(stored.request("t", 2))


def test_a_row_of_a_trainer_with_its_own_advantages_has_the_weight_of_its_leaf() -> None:
    group = group_of(ANSWERS)
    assert group.counts()["answer_weights"] == 2
    rows = requested_rows(group, 3, 0)
    assert [row.labels["benchflow_answer_weight"] for row in rows] == [0.75, 0.25, None]


def test_a_leaf_that_the_user_always_leads_to_is_not_counted() -> None:
    group = group_of(ALWAYS)
    assert group.counts()["answer_weights"] == 0
    [row] = requested_rows(group, 1, 0)
    assert row.labels["benchflow_answer_weight"] == 1.0


def test_a_row_of_trl_has_the_weight_of_its_leaf(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("trl.experimental.async_grpo.async_rollout_worker")
    module.RolloutSample = SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    options = TrainerOptions(advantage="intra", assumed_version=1)
    worker = GroupWorker(StoredGroups(lambda: [forked(recorded(), answers=ANSWERS)]), options)
    worker.start()
    rows = [worker.rollout_buffer.get(timeout=30) for _ in range(2)]
    counts = worker.metrics_queue.get(timeout=30)
    worker.stop()
    assert [row.metrics["benchflow/answer_weight"] for row in rows] == [0.75, 0.25]
    assert counts["benchflow/answer_weights_total"] == 2
