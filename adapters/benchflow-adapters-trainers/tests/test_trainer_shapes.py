"""The shapes that each trainer gets, by name and type, without the trainer.

`tests/trainers` has the real packages; these tests pin what they read.
"""

# pyright: basic

import asyncio
import queue
import sys
import threading
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from benchflow_adapters_trainers import (
    GroupWorker,
    LostRolloutError,
    RolloutFunction,
    SampleAgentLoop,
    SampleGenerator,
    completion_reward,
    prompt_rows,
)
from benchflow_contracts import BenchFlowError, UsageError
from benchflow_export import RolloutGroup, StoredGroups, TrainerOptions
from trainer_servers import one_by_one, scored_rollout


@dataclass(slots=True)
class RolloutSample:
    """The fields of trl 1.16.0."""

    prompt: list[dict[str, Any]]
    completion: list[dict[str, Any]]
    input_ids: Any
    completion_mask: Any
    old_log_probs: Any
    advantage: float
    model_version: int
    group_id: int
    metrics: dict[str, float]
    enqueued_at: float | None = None


@dataclass
class Recorded:
    """An `AgentLoopOutput` of verl 0.9.1, by its fields."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float]
    reward_score: float
    num_turns: int
    metrics: Any
    extra_fields: dict[str, Any]


class AgentLoopBase:
    @classmethod
    def register(cls, other: type) -> None:
        assert other is SampleAgentLoop


@pytest.fixture(autouse=True)
def trainers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the two modules that are imported when they are used into place."""
    trl = ModuleType("trl.experimental.async_grpo.async_rollout_worker")
    trl.RolloutSample = RolloutSample  # type: ignore[attr-defined]
    verl = ModuleType("verl.experimental.agent_loop.agent_loop")
    verl.AgentLoopBase = AgentLoopBase  # type: ignore[attr-defined]
    verl.AgentLoopOutput = Recorded  # type: ignore[attr-defined]
    verl.AgentLoopMetrics = SimpleNamespace  # type: ignore[attr-defined]
    for module in (trl, verl):
        monkeypatch.setitem(sys.modules, module.__name__, module)


def two_trees() -> StoredGroups:
    return StoredGroups(lambda: [scored_rollout(f"r{n}", 1.0, 0.0) for n in range(2)])


def take(worker: GroupWorker, number: int) -> list[RolloutSample]:
    return [worker.rollout_buffer.get(timeout=30) for _ in range(number)]


def wait_for_end(worker: GroupWorker) -> None:
    assert worker._thread is not None
    worker._thread.join(30)
    assert not worker._thread.is_alive()


def test_a_worker_of_trl_has_the_names_of_its_protocol_and_rows_of_arrays() -> None:
    worker = GroupWorker(two_trees(), TrainerOptions(advantage="intra"))
    worker.update_model_version(4)
    worker.start()
    rows = take(worker, 4)
    worker.stop()
    worker.stop()
    first = rows[0]
    assert (first.input_ids.dtype, first.completion_mask.dtype, first.old_log_probs.dtype) == (
        np.int64,
        np.int64,
        np.float32,
    )
    assert first.input_ids.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert first.completion_mask.tolist() == [0, 0, 0, 1, 1, 0, 1]
    assert first.old_log_probs.tolist() == [0, 0, 0, -0.5, -0.5, 0, -0.5]
    assert [row.advantage > 0 for row in rows] == [True, False, True, False]
    # The oldest weights that sampled the row: the leaf's own message is of version 4.
    assert [row.model_version for row in rows] == [3, 3, 3, 3]
    assert {row.group_id for row in rows} == {0}
    assert (type(first.advantage), type(first.model_version), type(first.group_id)) == (
        float,
        int,
        int,
    )
    assert [message["content"] for message in first.completion] == ["hello", "A", "left"]
    assert first.metrics == {"reward": 1.0}
    assert first.enqueued_at is not None
    [metrics] = [worker.metrics_queue.get_nowait()]
    assert metrics["benchflow/excluded_unscored_total"] == 2
    assert metrics["benchflow/mixed_versions_total"] == 2
    assert metrics["benchflow/rows_total"] == 4


class Blocked:
    """A source whose rollouts never end, and that must be closed."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.was_closed = False

    async def groups(self) -> AsyncGenerator[RolloutGroup, None]:
        try:
            self.began.set()
            await asyncio.Event().wait()
            yield RolloutGroup("t", ())
        finally:
            self.was_closed = True

    def set_policy_version(self, version: int) -> None:
        """Ignore the version."""


def test_a_worker_cancels_its_rollouts_when_it_stops() -> None:
    source = Blocked()
    worker = GroupWorker(source)
    worker.start()
    assert source.began.wait(30)
    worker.check_health(60)
    worker.stop()
    assert source.was_closed
    with pytest.raises(UsageError, match="started before"):
        worker.start()


def test_a_worker_waits_for_the_trainer_and_stops_in_that_wait() -> None:
    worker = GroupWorker(two_trees(), queue_size=1)
    worker.start()
    take(worker, 1)
    take(worker, 1)
    worker.stop()
    assert worker.rollout_buffer.qsize() <= 1


class Failing(Blocked):
    async def groups(self) -> AsyncGenerator[RolloutGroup, None]:
        yield await two_trees().request("t", 4)
        raise UsageError("the task is gone")


def test_a_worker_reports_the_error_of_its_source_after_the_rows_before_it() -> None:
    worker = GroupWorker(Failing())
    worker.start()
    take(worker, 4)
    wait_for_end(worker)
    with pytest.raises(BenchFlowError, match="failed: the task is gone"):
        worker.check_health(60)


def test_a_worker_whose_source_ended_says_so_only_when_the_rows_are_used() -> None:
    worker = GroupWorker(two_trees())
    worker.start()
    wait_for_end(worker)
    for _ in range(4):
        worker.check_health(60)
        worker.rollout_buffer.get_nowait()
    with pytest.raises(BenchFlowError, match="ended after 1 groups"):
        worker.check_health(60)


def test_trl_is_needed_only_when_the_worker_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trl.experimental.async_grpo.async_rollout_worker", None)
    worker = GroupWorker(two_trees())
    with pytest.raises(UsageError, match="cannot import TRL"):
        worker.start()
    with pytest.raises(UsageError, match="'none'"):
        GroupWorker(two_trees(), TrainerOptions(advantage="none"))


def trl_trainer() -> Any:
    return SimpleNamespace(
        state=SimpleNamespace(global_step=3), processing_class=SimpleNamespace(pad_token_id=0)
    )


def test_a_rollout_function_gives_each_prompt_one_row_and_masks_the_lost() -> None:
    function = RolloutFunction(two_trees())
    assert prompt_rows(["t"]) == [{"prompt": "t"}]
    output = function(["t"] * 6, trl_trainer())
    assert {key: len(rows) for key, rows in output.items()} == dict.fromkeys(
        ("prompt_ids", "completion_ids", "logprobs", "env_mask", "benchflow_reward"), 6
    )
    assert output["prompt_ids"] == [[1, 2, 3]] * 6
    assert output["completion_ids"][:3] == [[4, 5, 6, 7], [4, 5, 6, 7], [4, 5, 8, 9]]
    assert output["env_mask"][3:] == [[1, 1, 0, 1], [0], [0]]
    assert output["logprobs"][0] == [-0.5, -0.5, 0.0, -0.5]
    assert completion_reward([""] * 6, benchflow_reward=output["benchflow_reward"]) == [
        *[1.0, 1.0, 0.0, 0.0],
        *[None, None],
    ]
    assert [leaf.reason for leaf in function.excluded] == ["unscored", "unscored"]
    with pytest.raises(UsageError, match="no stored rollout has the task 'other'"):
        function(["other"], trl_trainer())
    with pytest.raises(UsageError, match="not the id of a task"):
        function([[{"role": "user", "content": "t"}]], trl_trainer())
    function.close()


def test_a_rollout_function_does_not_train_on_a_batch_of_lost_rollouts() -> None:
    lost = StoredGroups(lambda: [scored_rollout("r0", None, None)])
    function = RolloutFunction(lost)
    with pytest.raises(BenchFlowError, match="none of 2 rollouts can be trained on: r0/n2: unsc"):
        function(["t"] * 2, trl_trainer())
    function.close()


@pytest.mark.parametrize("more", [{"advantage": "intra"}, {"shared_prefix": "once"}])
def test_a_trainer_with_its_own_advantages_refuses_ours(more: dict[str, Any]) -> None:
    options = TrainerOptions(**more)
    with pytest.raises(UsageError):
        RolloutFunction(two_trees(), options)
    with pytest.raises(UsageError):
        SampleGenerator(two_trees(), options)


@dataclass
class TrajectoryID:
    instance_id: str
    repetition_id: int


def batch(*tasks: str, size: int = 2) -> dict[str, Any]:
    """An input of skyrl 0.3.0, whose trajectories of two prompts alternate."""
    ids = [TrajectoryID(task, n) for n in range(size) for task in tasks]
    return {
        "prompts": [[]] * len(ids),
        "env_classes": ["none"] * len(ids),
        "env_extras": [{"task_id": each.instance_id} for each in ids],
        "sampling_params": {},
        "trajectory_ids": ids,
        "batch_metadata": SimpleNamespace(global_step=3, training_phase="train"),
    }


class TwoTasks:
    """Answers the task `t`, and loses all rollouts of another."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, int]] = []
        self.versions: list[int] = []

    async def request(self, task_id: str, size: int) -> RolloutGroup:
        self.requests.append((task_id, size))
        return await two_trees().request("t", size) if task_id == "t" else RolloutGroup("x", ())

    def set_policy_version(self, version: int) -> None:
        self.versions.append(version)


def test_a_generator_of_skyrl_answers_in_the_order_of_its_input() -> None:
    server = TwoTasks()
    output = asyncio.run(SampleGenerator(server).generate(batch("t", "x", size=3)))
    assert (sorted(server.requests), server.versions) == ([("t", 3), ("x", 3)], [3])
    assert [each.instance_id for each in output["trajectory_ids"]] == ["t", "x"] * 3
    assert [sum(mask) for mask in output["loss_masks"]] == [3, 0, 3, 0, 3, 0]
    assert output["rewards"] == [1.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    assert output["stop_reasons"] == ["stop", "error"] * 3
    assert output["env_metrics"][1]["benchflow_excluded"] == "a rollout: missing"
    metrics = output["rollout_metrics"]
    assert (metrics["benchflow/excluded_surplus"], metrics["benchflow/samples"]) == (1, 3)
    assert metrics["benchflow/excluded_missing"] == 3
    for name in ("response_ids", "prompt_token_ids", "loss_masks", "rollout_logprobs"):
        assert all(isinstance(row, list) and row for row in output[name]), name
    assert all(isinstance(each, float) for each in output["rewards"])
    assert output["is_last_step"] is None
    assert len(output["trajectory_generation_times"]) == 6


def test_a_generator_refuses_an_input_without_a_task() -> None:
    request = {**batch("t"), "env_extras": None}
    with pytest.raises(UsageError, match="input 0 does not name its task"):
        asyncio.run(SampleGenerator(two_trees()).generate(request))
    request = {**batch("t"), "trajectory_ids": None}
    with pytest.raises(UsageError, match="step-wise"):
        asyncio.run(SampleGenerator(two_trees(), step_wise=True).generate(request))
    assert asyncio.run(SampleGenerator(two_trees()).generate(request))["trajectory_ids"] is None


def loop_of(server: Any, **more: Any) -> SampleAgentLoop:
    rollout = SimpleNamespace(prompt_length=8, response_length=8)
    config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout))
    return SampleAgentLoop(
        SimpleNamespace(config=config),
        None,
        SimpleNamespace(pad_token_id=0),
        processor=None,
        server=server,
        **more,
    )


def test_an_agent_loop_of_verl_returns_one_row_with_the_weights_that_sampled_it() -> None:
    output = asyncio.run(loop_of(one_by_one(1.0)).run({}, task_id="t", raw_prompt=[]))
    assert (output.prompt_ids, output.response_ids) == ([1, 2, 3], [4, 5, 6, 7])
    assert output.response_mask == [1, 1, 0, 1]
    assert output.response_logprobs == [-0.5, -0.5, 0.0, -0.5]
    assert (output.reward_score, output.num_turns) == (1.0, 4)
    assert output.extra_fields == {
        "min_global_steps": 3,
        "max_global_steps": 4,
        "reward_extra_info": {},
        "benchflow_rollout": "r0",
        "benchflow_leaf": "n2",
        "benchflow_excluded": None,
        "benchflow_shared_prefix": "per_leaf",
        "benchflow_answer_weight": 1.0,
    }


def test_an_agent_loop_never_gives_a_lost_rollout_a_reward_by_itself() -> None:
    with pytest.raises(LostRolloutError, match="unscored") as error:
        asyncio.run(loop_of(one_by_one(None), attempts=1).run({}, task_id="t"))
    assert error.value.retryable
    loop = loop_of(one_by_one(None), attempts=1, lost_reward=-1.0)
    output = asyncio.run(loop.run({}, task_id="t", global_steps=7))
    assert (output.reward_score, output.response_mask) == (-1.0, [0])
    assert output.extra_fields["benchflow_excluded"] == "r0/n2: unscored: lost"
    with pytest.raises(UsageError, match="does not name its task"):
        asyncio.run(loop_of(one_by_one(1.0)).run({}))
    with pytest.raises(UsageError, match="attempts is 0"):
        loop_of(one_by_one(1.0), attempts=0)
    with pytest.raises(UsageError, match="cannot import the server 'nowhere:make'"):
        loop_of("nowhere:make")


def test_nothing_is_left_in_the_queues_of_a_worker_that_never_began() -> None:
    worker = GroupWorker(two_trees())
    worker.stop()
    for waiting in (worker.rollout_buffer, worker.metrics_queue):
        with pytest.raises(queue.Empty):
            waiting.get_nowait()
