"""The operator's limits of a request, and what becomes of a rollout above its budget."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import Usage, UsageReported
from benchflow_kernel.config import BranchPolicy
from benchflow_serve.caps import RequestCaps, SpendingTracker, tree_size
from benchflow_serve.problems import LimitExceededError
from benchflow_serve_client import GroupRequest, RolloutBudget, RolloutRequest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from served_rollouts import TASK, open_service, settings_at, wait_for

_POLICY: TypeAdapter[Any] = TypeAdapter(BranchPolicy)


@pytest.mark.parametrize(
    ("branch", "size"),
    [
        ({"kind": "group", "n": 4}, (4, 1)),
        ({"kind": "group", "n": 2, "budget": {"max_depth": 3}}, (8, 7)),
        ({"kind": "group", "n": 2, "budget": {"max_depth": 3, "max_forks": 2}}, (3, 2)),
        ({"kind": "value", "n": 3}, (4, 1)),
        ({"kind": "ask-user", "budget": {"max_children": 5, "max_depth": 2}}, (25, 6)),
        ({"kind": "group", "n": 2, "then": {"kind": "best-of", "n": 3}}, (6, 3)),
    ],
)
def test_the_greatest_tree_of_a_branch_policy_is_known(
    branch: dict[str, Any], size: tuple[int, int]
) -> None:
    assert tree_size(_POLICY.validate_python(branch)) == size


@given(
    n=st.integers(2, 10**9),
    depth=st.integers(1, 10**9),
    forks=st.none() | st.integers(1, 10**9),
)
def test_the_size_of_an_absurd_tree_is_computed_at_once(
    n: int, depth: int, forks: int | None
) -> None:
    budget = {"max_depth": depth, "max_forks": forks, "max_children": n}
    leaves, splits = tree_size(_POLICY.validate_python({"kind": "group", "n": n, "budget": budget}))
    assert leaves >= n
    assert splits <= leaves
    assert forks is None or splits <= forks


@pytest.mark.parametrize(
    ("caps", "fields", "where"),
    [
        ({"leaves": 3}, {"branch": {"kind": "group", "n": 4}}, "branch"),
        ({"forks": 1}, {"branch": {"kind": "group", "budget": {"max_depth": 2}}}, "branch"),
        ({"wall_sec": 5}, {"deadline_sec": 6}, "deadline_sec"),
        ({"tokens": 10}, {"budget": RolloutBudget(tokens=11)}, "budget.tokens"),
        ({"cost_usd": 1}, {"budget": RolloutBudget(cost_usd=2)}, "budget.cost_usd"),
    ],
)
def test_a_request_above_a_limit_is_refused_with_its_name(
    tmp_path: Path, caps: dict[str, Any], fields: dict[str, Any], where: str
) -> None:
    async def check() -> None:
        settings = settings_at(tmp_path, caps=RequestCaps.model_validate(caps))
        async with open_service(settings) as service:
            with pytest.raises(LimitExceededError) as refused:
                await service.submit(RolloutRequest(task=TASK, **fields))
            assert (refused.value.status, refused.value.key) == (400, where)
            assert "--cap-" in (refused.value.hint or "")
            assert not service.statuses()

    asyncio.run(check())


def test_a_group_that_never_fits_is_refused_at_once(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_service(settings_at(tmp_path, slots=1, queue=2)) as service:
            with pytest.raises(LimitExceededError, match="room for 3"):
                await service.submit_group(GroupRequest(size=4, rollout=RolloutRequest(task=TASK)))

    asyncio.run(check())


def test_the_limit_is_the_deadline_of_a_request_without_one(tmp_path: Path) -> None:
    async def check() -> None:
        settings = settings_at(tmp_path, "hanging_agent", caps=RequestCaps(wall_sec=0.2))
        async with open_service(settings) as service:
            status = await service.submit(RolloutRequest(task=TASK))
            await wait_for(service, status.id, "ended")
            ended = service.status(status.id)
            assert (ended.outcome, ended.error and ended.error.type) == (
                "unscored",
                "DeadlineError",
            )

    asyncio.run(check())


def _report(tokens: int, cost: float | None, source: Any = "gateway") -> UsageReported:
    return UsageReported(
        seq=1,
        ts=0.0,
        world="w",
        node="n",
        source=source,
        usage=Usage(input_tokens=tokens, output_tokens=1),
        cost_usd=cost,
    )


def test_calls_are_counted_until_the_budget_is_used_up() -> None:
    spent = SpendingTracker(RolloutBudget(tokens=20, cost_usd=1))
    assert spent.add(_report(9, None)) is None
    assert spent.add(_report(100, None, "agent")) is None
    assert spent.add(_report(9, 0.5)) is None
    assert "21 tokens" in str(spent.add(_report(0, None)))
    assert "USD" in str(SpendingTracker(RolloutBudget(cost_usd=1)).add(_report(1, 1.5)))
