"""What a trainer must not learn from, in each adapter that gives live rollouts to a trainer.

The modules of the trainers are replaced by the few names that an adapter takes from them;
`tests/trainers` has the real packages.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from benchflow_adapters_trainers import (
    GroupWorker,
    LostRolloutError,
    RemoteGroups,
    RolloutFunction,
    SampleAgentLoop,
    SampleGenerator,
)
from benchflow_contracts import BenchFlowError, Sample, TrainingOptions
from benchflow_export import (
    ExcludedLeaf,
    RequestedGroups,
    RolloutGroup,
    StoredGroups,
    TrainerOptions,
    credit_rows,
    group_rollouts,
)
from benchflow_serve.env_wire import render_episode
from benchflow_serve.results import choose_samples, leaf_scores, render_samples
from benchflow_serve_client import (
    GroupRequest,
    GroupStatus,
    Render,
    RolloutResult,
    RolloutStatus,
)
from trainer_hazards import HAZARDS, TEXT, TOKEN, Trained, said

REPORTED = {
    "unscored": "excluded_unscored",
    "tampered": "excluded_tampered",
    "counterfactual": "excluded_counterfactual",
    "truncated": "excluded_truncated",
    "mixed-versions": "mixed_versions",
    "retokenised": "breaks",
    "without-logprobs": "missing_logprobs",
    "without-prompt": "missing_logprobs",
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


def check(
    hazard: str,
    trained: set[Trained],
    *,
    needs_good: bool = True,
    marks_truncated: bool = False,
) -> None:
    """Each trained token is one that the policy sampled after these tokens, and may be trained."""
    case = HAZARDS[hazard]
    calls = dict(case.make().calls)
    good, allowed = said(calls, ("c1", "c2", "c3")), said(calls, case.may_train)
    assert trained <= good | allowed
    if needs_good:
        assert {7, 9} <= {token for _, token in trained}
    is_masked = hazard == "truncated" and not marks_truncated
    if TOKEN not in {token for _, token in allowed} or is_masked:
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


def of_nodes(traces: list[dict[str, Any]]) -> Iterator[Trained]:
    for nodes in (trace["nodes"] for trace in traces):
        before: list[list[int]] = []
        for node in nodes:
            start = [] if node["parent"] is None else before[node["parent"]]
            before.append([*start, *node["token_ids"]])
            yield from of_row(before[-1], [*(0 for _ in start), *node["mask"]])


def of_sample(row: Mapping[str, Any]) -> Iterator[Trained]:
    for sequence in Sample.model_validate_json(json.dumps(row)).sequences():
        yield from of_row(sequence.token_ids, sequence.loss_mask)


def of_turn(row: Mapping[str, Any]) -> Iterator[Trained]:
    prompt, tokens = row["prompt_token_ids"] or [], row["completion_token_ids"]
    mask = [row["is_trainable"]] * len(tokens)
    yield from of_row([*prompt, *tokens], [*(0 for _ in prompt), *mask])


READERS: dict[Render, Callable[[Mapping[str, Any]], Iterator[Trained]]] = {
    "leaves": of_sample,
    "graph": lambda row: of_nodes(row["traces"]),
    "turns": of_turn,
}
INEXACT = {"retokenised", "without-logprobs", "without-prompt", "compaction"}
LEFT_OUT = {"unscored", "tampered", "counterfactual"}


@pytest.mark.parametrize("hazard", HAZARDS)
@pytest.mark.parametrize("render", READERS)
def test_a_result_of_the_service_leaves_out_or_marks_a_hazard(hazard: str, render: Render) -> None:
    source = HAZARDS[hazard].make()
    rows, left_out = render_samples(source, render, TrainingOptions())
    check(hazard, {pair for row in rows for pair in READERS[render](row)}, marks_truncated=True)
    assert left_out == ({hazard: 1} if hazard in LEFT_OUT else {})
    marks = ('"is_truncated": true', '"truncated": ["bad"]')
    assert hazard != "truncated" or any(mark in json.dumps(rows) for mark in marks)
    is_mixed = hazard in {"mixed-versions", "mixed-call"}
    assert not is_mixed or '"v2"' in json.dumps(rows)
    _, masked = render_samples(source, render, TrainingOptions(mixed_versions="mask"))
    assert ("mixed_versions" in masked) == is_mixed
    _, exact = render_samples(source, render, TrainingOptions(require_tokens=True))
    is_inexact = hazard in INEXACT
    assert ("inexact_tokens" in exact) == is_inexact


@pytest.mark.parametrize("hazard", HAZARDS)
def test_the_chats_of_the_service_leave_out_or_mark_a_hazard(hazard: str) -> None:
    rows, left_out = render_samples(HAZARDS[hazard].make(), "messages", TrainingOptions())
    assert left_out == ({hazard: 1} if hazard in LEFT_OUT else {})
    assert [row["is_truncated"] for row in rows].count(True) == (hazard == "truncated")
    bad = [row for row in rows if TEXT in json.dumps(row)]
    assert hazard not in {*LEFT_OUT, "auxiliary"} or not bad


@pytest.mark.parametrize("hazard", HAZARDS)
def test_the_env_server_of_verifiers_leaves_out_or_marks_a_hazard(hazard: str) -> None:
    source = HAZARDS[hazard].make()
    options = TrainingOptions(require_tokens=True)  # As a run with `client.type = "train"`.
    samples, left_out = choose_samples(source, options, needs_tokens=True)
    rendered = render_episode(samples, source.calls, {})
    assert rendered is not None
    check(hazard, set(of_nodes(rendered["traces"])), marks_truncated=True)
    assert set(left_out) == ({"inexact_tokens"} if hazard in INEXACT else {hazard} & LEFT_OUT)
    ends = [trace["stop_condition"] for trace in rendered["traces"]]
    assert ("max_output_tokens" in ends) == (hazard == "truncated")


class ServiceStub:
    """The part of a client that `RemoteGroups` uses, with one ended rollout."""

    def __init__(self, hazard: str) -> None:
        self.source = HAZARDS[hazard].make()
        status = RolloutStatus(
            id="r",
            state="ended",
            outcome="scored",
            task="task",
            created_at=1.0,
            leaves=leaf_scores(self.source.tree),
        )
        self.ended = GroupStatus(id="g", size=1, members=[status], is_ended=True)
        self.acknowledged: list[str] = []

    async def submit_group(self, request: GroupRequest) -> GroupStatus:
        self.options = request.rollout.training
        return self.ended

    async def result(self, ident: str) -> RolloutResult:
        del ident
        rows, _ = render_samples(self.source, "leaves", self.options)
        text = json.dumps(rows)
        return RolloutResult(
            rollout=self.ended.members[0], render="leaves", samples=json.loads(text)
        )

    async def acknowledge(self, ident: str) -> None:
        self.acknowledged.append(ident)


@pytest.mark.parametrize("hazard", HAZARDS)
def test_groups_of_another_machine_name_the_same_hazards_as_groups_from_disk(hazard: str) -> None:
    service = ServiceStub(hazard)
    remote = RemoteGroups(service, ["task"], policy="p")  # type: ignore[arg-type]
    group = asyncio.run(remote.request("task", 3))
    here = group_rollouts("task", [service.source])
    assert group.counts() == here.counts()
    assert [(each.reason, each.leaf) for each in group.excluded] == [
        (each.reason, each.leaf) for each in here.excluded
    ]
    trained = {
        pair
        for row in credit_rows(group, TrainerOptions())[0]
        for pair in of_row(row.token_ids, row.loss_mask)
    }
    check(hazard, trained)
    assert service.acknowledged == ["r"]


def test_the_worker_of_trl_gets_rows_from_another_machine() -> None:
    service = ServiceStub("truncated")
    remote = RemoteGroups(service, ["task"], policy="p")  # type: ignore[arg-type]
    worker = GroupWorker(RequestedGroups(remote, ["task"], size=3), queue_size=2)
    worker.start()
    rows = [worker.rollout_buffer.get(timeout=30) for _ in range(2)]
    worker.stop()
    assert {row.advantage > 0 for row in rows} == {True, False}
    assert {row.model_version for row in rows} == {1}
    pairs = {pair for row in rows for pair in of_row(row.input_ids.tolist(), row.completion_mask)}
    check("truncated", pairs)


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
