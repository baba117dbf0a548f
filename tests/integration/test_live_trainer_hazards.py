"""What a trainer must not learn from, in each adapter that gives live rollouts to a trainer.

The modules of the trainers are replaced by the few names that an adapter takes from them;
`tests/trainers` has the real packages.
"""

import asyncio
import sys
from collections.abc import Iterable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from benchflow_adapters_trainers import (
    GroupWorker,
    LostRolloutError,
    RolloutFunction,
    SampleAgentLoop,
    SampleGenerator,
)
from benchflow_contracts import BenchFlowError
from benchflow_export import ExcludedLeaf, RolloutGroup, StoredGroups, group_rollouts
from trainer_hazards import HAZARDS, TOKEN, Trained, said

REPORTED = {
    "unscored": "excluded_unscored",
    "tampered": "excluded_tampered",
    "counterfactual": "excluded_counterfactual",
    "truncated": "excluded_truncated",
    "mixed-versions": "mixed_versions",
    "retokenised": "breaks",
    "without-logprobs": "missing_logprobs",
    "compaction": "breaks",
}
"""The count of a trainer's log that names each hazard. An auxiliary call is not a hazard."""


class AgentLoopBase:
    @classmethod
    def register(cls, other: type) -> None:
        """Take every loop."""


@pytest.fixture(autouse=True)
def trainers(monkeypatch: pytest.MonkeyPatch) -> None:
    trl = ModuleType("trl.experimental.async_grpo.async_rollout_worker")
    trl.RolloutSample = SimpleNamespace  # type: ignore[attr-defined]
    verl = ModuleType("verl.experimental.agent_loop.agent_loop")
    verl.AgentLoopBase = AgentLoopBase  # type: ignore[attr-defined]
    verl.AgentLoopOutput = SimpleNamespace  # type: ignore[attr-defined]
    verl.AgentLoopMetrics = SimpleNamespace  # type: ignore[attr-defined]
    for module in (trl, verl):
        monkeypatch.setitem(sys.modules, module.__name__, module)


def stored(hazard: str) -> StoredGroups:
    return StoredGroups(lambda: [HAZARDS[hazard].make()])


def of_row(tokens: list[int], mask: Iterable[int]) -> Iterator[Trained]:
    for at, flag in enumerate(mask):
        if flag:
            yield tuple(tokens[:at]), tokens[at]


def check(hazard: str, trained: set[Trained], *, needs_good: bool = True) -> None:
    """Each trained token is one that the policy sampled after these tokens, and may be trained."""
    case = HAZARDS[hazard]
    calls = dict(case.make().calls)
    good, allowed = said(calls, ("c1", "c2", "c3")), said(calls, case.may_train)
    assert trained <= good | allowed
    if needs_good:
        assert {7, 9} <= {token for _, token in trained}
    if TOKEN not in {token for _, token in allowed} or hazard == "truncated":
        assert TOKEN not in {token for _, token in trained}


@pytest.mark.parametrize("hazard", HAZARDS)
def test_the_worker_of_trl_leaves_out_or_reports_a_hazard(hazard: str) -> None:
    worker = GroupWorker(stored(hazard))
    worker.start()
    metrics = worker.metrics_queue.get(timeout=30)
    rows = [
        worker.rollout_buffer.get(timeout=30) for _ in range(int(metrics["benchflow/rows_total"]))
    ]
    worker.stop()
    check(hazard, {p for r in rows for p in of_row(r.input_ids.tolist(), r.completion_mask)})
    if hazard in REPORTED:
        assert metrics[f"benchflow/{REPORTED[hazard]}_total"] >= 1


@pytest.mark.parametrize("hazard", HAZARDS)
def test_the_rollout_function_of_trl_masks_or_reports_a_hazard(hazard: str) -> None:
    function = RolloutFunction(stored(hazard))
    trainer = SimpleNamespace(
        state=SimpleNamespace(global_step=1), processing_class=SimpleNamespace(pad_token_id=0)
    )
    output = function(["task"] * 3, trainer)
    function.close()
    trained: set[Trained] = set()
    for prompt, completion, mask in zip(
        output["prompt_ids"], output["completion_ids"], output["env_mask"], strict=True
    ):
        trained |= set(of_row([*prompt, *completion], [*(0 for _ in prompt), *mask]))
    check(hazard, trained)
    if REPORTED.get(hazard, "").startswith("excluded_"):
        assert hazard in {leaf.reason for leaf in function.excluded}


def batch(size: int) -> dict[str, Any]:
    ids = [SimpleNamespace(instance_id="task", repetition_id=n) for n in range(size)]
    return {
        "prompts": [[]] * size,
        "env_classes": ["none"] * size,
        "env_extras": [{"task_id": "task"}] * size,
        "sampling_params": {},
        "trajectory_ids": ids,
        "batch_metadata": SimpleNamespace(global_step=1, training_phase="train"),
    }


@pytest.mark.parametrize("hazard", HAZARDS)
def test_the_generator_of_skyrl_masks_or_reports_a_hazard(hazard: str) -> None:
    output = asyncio.run(SampleGenerator(stored(hazard)).generate(batch(3)))
    trained: set[Trained] = set()
    for prompt, response, mask in zip(
        output["prompt_token_ids"], output["response_ids"], output["loss_masks"], strict=True
    ):
        trained |= set(of_row([*prompt, *response], [*(0 for _ in prompt), *mask]))
    check(hazard, trained)
    if hazard in REPORTED:
        assert output["rollout_metrics"][f"benchflow/{REPORTED[hazard]}"] >= 1


class OnlyTheHazard:
    """Answers with the leaf `bad` alone."""

    def __init__(self, hazard: str) -> None:
        self.group = group_rollouts("task", [HAZARDS[hazard].make()])

    async def request(self, task_id: str, size: int) -> RolloutGroup:
        samples = tuple(each for each in self.group.samples if each.leaf == "bad")
        excluded = tuple(each for each in self.group.excluded if each.leaf == "bad")
        return RolloutGroup(task_id, samples, excluded, self.group.policy_version)

    def set_policy_version(self, version: int) -> None:
        """Ignore the version."""


@pytest.mark.parametrize("hazard", HAZARDS)
def test_the_agent_loop_of_verl_refuses_masks_or_reports_a_hazard(hazard: str) -> None:
    rollout = SimpleNamespace(prompt_length=64, response_length=64)
    config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout))
    server = OnlyTheHazard(hazard)
    loop = SampleAgentLoop(
        SimpleNamespace(config=config),
        None,
        SimpleNamespace(pad_token_id=0),
        processor=None,
        server=server,
        attempts=1,
    )
    lost = [leaf for leaf in server.group.excluded if leaf.leaf == "bad"]
    running = loop.run({}, task_id="task", raw_prompt=[])
    if lost and lost[0].reward is None:
        with pytest.raises(LostRolloutError, match=hazard):
            asyncio.run(running)
        return
    output = asyncio.run(running)
    outputs = output if isinstance(output, list) else [output]
    trained = {
        pair
        for each in outputs
        for pair in of_row(
            [*each.prompt_ids, *each.response_ids],
            [*(0 for _ in each.prompt_ids), *each.response_mask],
        )
    }
    check(hazard, trained, needs_good=False)
    # The return of the policy counts in the baseline of verl; its tokens are masked.
    assert not (lost and trained)


def test_a_batch_of_hazards_alone_is_an_error_and_not_a_batch_of_zeros() -> None:
    class Lost:
        async def request(self, task_id: str, size: int) -> RolloutGroup:
            return RolloutGroup(task_id, (), (ExcludedLeaf("tampered", "r", "bad"),) * size)

        def set_policy_version(self, version: int) -> None:
            """Ignore the version."""

    function = RolloutFunction(Lost())
    trainer = SimpleNamespace(
        state=SimpleNamespace(global_step=1), processing_class=SimpleNamespace(pad_token_id=0)
    )
    with pytest.raises(BenchFlowError, match="tampered"):
        function(["task"] * 2, trainer)
    function.close()
