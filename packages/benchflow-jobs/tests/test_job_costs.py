"""The cost of a job's sandboxes and model calls, and its limit."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import ExecResult, JudgeUse, Usage, UsageError, VerifyResult
from benchflow_engine.config import RunConfig
from benchflow_engine.flags import run_config
from benchflow_engine.scaffold import write_task
from benchflow_jobs import JobCost, JobOptions, JobReport, preflight, read_job
from benchflow_jobs.budget import Budget, measured_judge
from benchflow_jobs.runner import run_job
from benchflow_store import read_groups
from benchflow_testing.fakes import FakeCall, FakeSandboxProvider
from hypothesis import given
from hypothesis import strategies as st


class Paid(FakeSandboxProvider):
    """A provider whose rollouts cost `price` each; `None`: nobody knows. Its tests earn 1."""

    def __init__(self, price: float | None) -> None:
        super().__init__()
        self.price = price
        self.rollouts = set[str]()
        self.on("/bin/sh -c set -eu", lambda _: _OK)
        self.on("/bin/sh -c [ ! -x /bin/bash ]", _earn)

    async def create(self, *args: Any, **options: Any) -> Any:
        self.rollouts.add(options["identity"].rollout)
        return await super().create(*args, **options)

    def cost_usd(self, rollout: str) -> float | None:
        known = rollout in self.rollouts or self.price is None
        return self.price if known else 0.0


_OK = ExecResult(exit_code=0, stdout="", stderr="", duration_sec=0)


def _earn(call: FakeCall) -> ExecResult:
    call.sandbox.files.put("/logs/verifier/reward.txt", "1")
    return _OK


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    write_task(tmp_path / "tasks" / "one")

    def go(provider: FakeSandboxProvider, **changes: Any) -> JobReport:
        @asynccontextmanager
        async def opened(_: RunConfig) -> AsyncIterator[FakeSandboxProvider]:
            yield provider

        monkeypatch.setattr(preflight, "open_provider", opened)
        options = {
            "tasks_dir": tmp_path / "tasks",
            "jobs_dir": tmp_path,
            "job_name": "job",
            "run": run_config(agent="nop"),
            "repeats": 8,
            "concurrency": 1,
            **changes,
        }
        return asyncio.run(run_job(JobOptions(**options)))

    return go


def test_a_job_ends_before_a_rollout_that_would_pass_its_limit(run: Any, tmp_path: Path) -> None:
    report = run(Paid(0.25), max_cost=1.1)
    # Four cost 1.00; a fifth would make it 1.25.
    assert report.finished == 4
    assert report.stopped is not None
    assert report.stopped.startswith("CostLimitError: the budget is used up: 1 of 1.1 US dollars")
    assert report.status == "paused"
    assert report.cost == JobCost(sandbox_usd=1.0, limit_usd=1.1)
    assert report.cost.total_usd == 1.0
    assert read_job(tmp_path / "job").cost == report.cost
    summary = json.loads((tmp_path / "job" / "summary.json").read_text())
    assert summary["cost"] == {
        "model_usd": 0,
        "sandbox_usd": 1.0,
        "judge_usd": 0,
        "limit_usd": 1.1,
    }


def test_what_runs_counts_as_what_it_will_probably_cost(run: Any) -> None:
    # With two at once, the fourth starts when 0.50 are spent and 0.25 are expected.
    assert run(Paid(0.25), max_cost=1.1, concurrency=2).finished == 4


def test_a_job_within_its_limit_says_what_it_cost(run: Any) -> None:
    report = run(Paid(0.25), repeats=3, max_cost=2)
    assert (report.status, report.stopped) == ("completed", None)
    assert report.cost == JobCost(sandbox_usd=0.75, limit_usd=2)


def test_a_job_resumes_when_its_limit_is_raised_and_counts_what_was_spent(run: Any) -> None:
    assert run(Paid(0.25), max_cost=0.5).finished == 2
    report = run(Paid(0.25), max_cost=1.0)
    assert report.finished == 4
    assert report.cost == JobCost(sandbox_usd=1.0, limit_usd=1.0)


def test_a_limit_needs_the_prices_of_the_sandboxes(run: Any, tmp_path: Path) -> None:
    provider = Paid(None)
    with pytest.raises(UsageError, match="prices of the sandboxes of 'fake' are not known"):
        run(provider, max_cost=1)
    assert provider.rollouts == set()
    assert not (tmp_path / "job").exists()
    assert run(provider, repeats=1).cost is None


def test_sandboxes_without_a_price_do_not_appear_as_costs(run: Any) -> None:
    assert run(FakeSandboxProvider(), repeats=1).cost is None


class FirstWins:
    """A group reward that could ask a judge."""

    name = "reward"

    async def score_group(self, task: Any, leaves: Sequence[Any]) -> list[VerifyResult]:
        del task
        return [VerifyResult(reward=float(at == 0)) for at, _ in enumerate(leaves)]


def test_a_group_reward_with_a_judge_waits_for_a_greater_budget(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "costly_rewards", sys.modules[__name__])
    judged = run_config(
        agent="nop",
        judge_url="http://127.0.0.1:9/v1",
        judge_model="judge",
        group_reward_import_path="costly_rewards:FirstWins",
    )
    report = run(Paid(0.25), run=judged, repeats=2, max_cost=0.5)
    assert (report.finished, report.mean_reward) == (2, 1.0)
    [mean] = report.group_means
    assert (mean.leaves, mean.unscored, mean.mean) == (0, 2, None)
    [group] = read_groups(tmp_path / "job")
    assert {leaf.result.error_type for leaf in group.leaves} == {"CostLimitError"}
    report = run(Paid(0.25), run=judged, repeats=2, max_cost=5)
    [mean] = report.group_means
    assert (mean.leaves, mean.unscored, mean.mean) == (2, 0, 0.5)


def test_a_budget_counts_the_calls_of_rewards_to_the_judge() -> None:
    use = JudgeUse(calls=2, usage=Usage(input_tokens=30, output_tokens=4), cost_usd=0.5)
    budget = Budget(cost_usd=1.0, tokens=100)
    budget.add_attempt({"cost_usd": 0.25, "tokens_in": 10.0, **measured_judge(use)})
    assert (budget.used_usd, budget.used_tokens) == (0.75, 44)
    # The next rollout would cost 0.75, too.
    assert "CostLimitError" in (budget.spent() or "")
    assert measured_judge(None) == measured_judge(JudgeUse()) == {}


@given(
    st.lists(st.floats(0, 10), max_size=20),
    st.floats(0.01, 50),
    st.integers(0, 8),
    st.floats(0, 20),
)
def test_a_budget_admits_only_what_fits_into_its_limit(
    costs: list[float], limit: float, running: int, running_usd: float
) -> None:
    budget = Budget(cost_usd=limit)
    for cost in costs:
        budget.add_attempt({"sandbox_usd": cost / 2, "cost_usd": cost / 2})
    mean = sum(costs) / len(costs) if costs else 0
    if budget.spent(running, running_usd) is None:
        assert sum(costs) + running_usd < limit
        assert sum(costs) + (running + 1) * mean <= limit + 1e-6
    else:
        committed = sum(costs) + max(running_usd, running * mean) + mean
        assert committed >= limit - 1e-6
