"""A trainer's worker gets the rows of rollouts that run in its thread, and cancels them."""

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from benchflow_adapters_trainers import GroupWorker
from benchflow_engine.flags import run_config
from benchflow_engine.live_groups import LiveGroups
from benchflow_export import RequestedGroups, TrainerOptions
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, book_the_review

TASKS = Path(__file__).parents[2] / "benchmarks" / "clawsbench" / "tasks"
OPTIONS = TrainerOptions(advantage="process", counterfactual=True)


@pytest.fixture
def worker_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], GroupWorker]:
    """Return a maker of workers, by the URL of a model. `tests/trainers` has TRL's own class."""
    module = ModuleType("trl.experimental.async_grpo.async_rollout_worker")
    module.RolloutSample = SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def make(url: str) -> GroupWorker:
        flags = {"base_url": f"{url}/v1", "model": "scripted", "upstream": "vllm"}
        server = LiveGroups(
            run_config(agent="policy", branch="ask-user", **flags),
            [TASKS / "book-the-review-room"],
            tmp_path,
            options=OPTIONS,
            leaves_per_rollout=3,
        )
        return GroupWorker(RequestedGroups(server, server.task_ids, 3, epochs=1), OPTIONS)

    return make


@pytest.mark.timeout(300)
def test_the_rollouts_of_a_request_run_fork_and_become_rows(
    worker_for: Callable[[str], GroupWorker],
) -> None:
    with ScriptedLlm(book_the_review) as llm:
        worker = worker_for(llm.url)
        worker.update_model_version(5)
        worker.start()
        rows: list[Any] = [worker.rollout_buffer.get(timeout=240) for _ in range(2)]
        worker.stop()

    # The leaf of the answer that the user gives has nothing to be compared with.
    assert sorted(row.metrics["reward"] for row in rows) == [0.0, 0.25]
    counts = worker.metrics_queue.get_nowait()
    assert counts["benchflow/rows_total"] == 2
    assert counts["benchflow/excluded_no_advantage_total"] == 1
    for row in rows:
        # The endpoint names a model, not the version of its weights.
        assert row.model_version == 5
        tokens = zip(row.input_ids.tolist(), row.completion_mask.tolist(), strict=True)
        sampled = bytes(token for token, on in tokens if on)
        assert b"Booked." in sampled
        # Above the fork no answer is better than another one.
        assert b"Only you can tell." not in sampled
        assert b"Only you can tell." in bytes(row.input_ids.tolist())


@pytest.mark.timeout(300)
def test_a_worker_that_stops_cancels_the_rollout_that_runs(
    worker_for: Callable[[str], GroupWorker], tmp_path: Path
) -> None:
    began, release = threading.Event(), threading.Event()

    def wait(request: ModelRequest) -> ModelReply:
        began.set()
        release.wait(200)
        return book_the_review(request)

    with ScriptedLlm(wait) as llm:
        worker = worker_for(llm.url)
        worker.start()
        try:
            assert began.wait(200)
            worker.stop()
        finally:
            release.set()
    [record] = tmp_path.glob("*/result.json")
    assert json.loads(record.read_text())["status"] == "cancelled"
    assert worker.rollout_buffer.empty()
