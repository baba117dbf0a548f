"""A rollout whose sandbox failed in a way that passes is run again, and counts once."""

import asyncio
import errno
import fcntl
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import (
    AccountError,
    CapacityError,
    CostLimitError,
    CredentialsError,
    ExecResult,
    NodeError,
    NodeFailed,
    NodeScored,
    QuotaError,
    RolloutFinished,
    RolloutIdentity,
    RolloutStarted,
    SandboxCapabilities,
    SandboxError,
    SandboxLostError,
    SandboxUnsupportedError,
    StoreError,
    UsageError,
    VerifyResult,
)
from benchflow_engine.config import RunConfig
from benchflow_engine.flags import run_config
from benchflow_engine.scaffold import write_task
from benchflow_jobs import JobOptions, JobReport, preflight
from benchflow_jobs.hold import held, new_directory
from benchflow_jobs.planning import config_of
from benchflow_jobs.runner import run_job
from benchflow_kernel import fold, load_task
from benchflow_store import read_records, record_from_tree
from benchflow_testing.fakes import FakeCall, FakeSandboxProvider


class Restarting(FakeSandboxProvider):
    """Fails to create a sandbox until `errors` are used up."""

    def __init__(self, *errors: SandboxError) -> None:
        super().__init__()
        self.errors = list(errors)
        self.identities: list[RolloutIdentity] = []

    async def create(self, *args: Any, **options: Any) -> Any:
        self.identities.append(options["identity"])
        if self.errors:
            raise self.errors.pop(0)
        return await super().create(*args, **options)


class FailsToGrade(Restarting):
    """Fails to create the sandbox of a grading until `errors` are used up. Its tests earn 1."""

    def __init__(self, *errors: SandboxError) -> None:
        super().__init__(*errors)
        self.graded = 0
        self.on(
            "/bin/sh -c set -eu",
            lambda call: ExecResult(exit_code=0, stdout="", stderr="", duration_sec=0),
        )
        self.on("/bin/sh -c [ ! -x /bin/bash ]", self._earn)

    def _earn(self, call: FakeCall) -> ExecResult:
        call.sandbox.files.put("/logs/verifier/reward.txt", "1")
        return ExecResult(exit_code=0, stdout="", stderr="", duration_sec=0)

    async def create(self, *args: Any, **options: Any) -> Any:
        if options["identity"].purpose == "grading":
            self.graded += 1
            return await super().create(*args, **options)
        return await FakeSandboxProvider.create(self, *args, **options)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    write_task(tmp_path / "tasks" / "one")

    def go(provider: FakeSandboxProvider, **changes: Any) -> JobReport:
        @asynccontextmanager
        async def opened(_: RunConfig) -> AsyncIterator[FakeSandboxProvider]:
            yield provider

        monkeypatch.setattr(preflight, "open_provider", opened)
        options = JobOptions(
            tasks_dir=tmp_path / "tasks",
            jobs_dir=tmp_path,
            job_name="job",
            run=run_config(agent="nop"),
            **changes,
        )
        config = config_of(options)
        retry = config.retry.model_copy(update={"pauses_sec": (0.0,)})
        return asyncio.run(run_job(config.model_copy(update={"retry": retry})))

    return go


GONE = SandboxError("the engine cannot be reached", retryable=True)


def test_what_passes_is_tried_again_and_is_one_result(run: Any, tmp_path: Path) -> None:
    provider = Restarting(GONE, GONE)
    report = run(provider)
    assert report.finished == len(report.records) == 1
    assert report.records[0].error is None or report.records[0].error.boundary != "sandbox"
    # The evidence of each try stays.
    assert len(list(read_records(tmp_path / "job"))) == 3
    assert (tmp_path / "job" / "results.jsonl").read_text().count("\n") == 1
    assert sorted({each.attempt or 0 for each in provider.identities}) == [1, 2, 3]
    assert {each.slot for each in provider.identities} == {"one#0"}
    assert {each.scope for each in provider.identities} == {"job"}
    assert len({each.epoch for each in provider.identities}) == 1
    assert len({each.rollout for each in provider.identities}) == 3


def test_a_grading_that_broke_in_a_way_that_passes_is_tried_again(run: Any, tmp_path: Path) -> None:
    provider = FailsToGrade(GONE)
    report = run(provider)
    assert provider.graded == 2
    assert [each.reward for each in report.records] == [1]
    first, last = sorted(read_records(tmp_path / "job"), key=lambda each: each.finished_at)
    assert report.records == (last,)
    assert first.reward is None
    assert first.error is not None
    failed = (first.error.boundary, first.error.type, first.error.retryable)
    assert failed == ("reward", "RewardError", True)


@pytest.mark.parametrize(
    ("error", "changes", "tries"),
    [(SandboxUnsupportedError("never"), {}, 1), (GONE, {"retries": 1}, 2)],
)
def test_a_grading_that_goes_on_breaking_is_unscored(
    run: Any, error: SandboxError, changes: dict[str, int], tries: int
) -> None:
    provider = FailsToGrade(*[error] * 9)
    report = run(provider, **changes)
    assert (provider.graded, report.scored, report.errors) == (tries, 0, {"reward": 1})


@pytest.mark.parametrize("passes", [True, False])
def test_an_agent_that_was_late_does_not_hide_that_its_grading_may_be_tried_again(
    tmp_path: Path, passes: bool
) -> None:
    late = NodeError(boundary="agent", type="AgentTimeoutError", message="late", retryable=True)
    broke = VerifyResult.unscored("killed", error_type="RewardError", retryable=passes)
    events = [
        RolloutStarted(seq=0, ts=1, rollout_id="r", task_id="t", root="n0", meta={}),
        NodeFailed(seq=1, ts=2, node="n0", error=late),
        NodeScored(seq=2, ts=3, node="n0", name="reward", result=broke),
        RolloutFinished(seq=3, ts=4, status="completed"),
    ]
    write_task(tmp_path / "task")
    record = record_from_tree(fold(events), load_task(tmp_path / "task"), RunConfig().ran_with)
    assert record.error is not None
    assert record.error.boundary == ("reward" if passes else "agent")


@pytest.mark.parametrize(
    ("error", "changes", "tries"),
    [
        (SandboxUnsupportedError("never"), {}, 1),
        (GONE, {"retries": 0}, 1),
        (GONE, {"retries": 1}, 2),
    ],
)
def test_what_does_not_pass_is_unscored_with_its_cause(
    run: Any, tmp_path: Path, error: SandboxError, changes: dict[str, int], tries: int
) -> None:
    report = run(Restarting(*[error] * 9), **changes)
    assert (report.finished, report.scored, report.mean_reward) == (1, 0, None)
    assert report.errors == {"sandbox": 1}
    assert len(list(read_records(tmp_path / "job"))) == tries


OUTSIDE = {
    CapacityError: "host",
    SandboxLostError: "host",
    QuotaError: "host",
    CostLimitError: "host",
    CredentialsError: "operator",
}


@pytest.mark.parametrize("kind", OUTSIDE, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("operation", ["create", "exec", "upload", "download", "freeze"])
def test_a_failure_outside_in_a_run_or_its_grading_is_never_a_reward(
    run: Any, tmp_path: Path, operation: str, kind: type[SandboxError]
) -> None:
    whole = FailsToGrade()
    assert [each.reward for each in run(whole).records] == [1]
    for call in range(whole.operations.count(operation)):
        shutil.rmtree(tmp_path / "job")
        provider = FailsToGrade()
        provider.faults.fail_on[operation] = kind("boom")
        provider.faults.after[operation] = call
        report = run(provider, retries=0)
        [record] = report.records
        assert (record.reward, record.claimed, report.scored) == (None, None, 0)
        assert record.error is not None
        assert record.error.boundary in {"sandbox", "reward"}
        assert record.error.caused_by == OUTSIDE[kind]
        assert record.error.hint == kind.default_hint
        assert record.error.stops_job is issubclass(kind, AccountError)
        assert report.causes == {OUTSIDE[kind]: 1}
    assert call > 0 or operation == "freeze"


@pytest.mark.parametrize("kind", OUTSIDE, ids=lambda kind: kind.__name__)
def test_a_sandbox_that_cannot_be_torn_down_before_its_grading_is_not_graded(
    run: Any, kind: type[SandboxError]
) -> None:
    provider = FailsToGrade()
    provider.faults.fail_on["teardown"] = kind("boom")
    [record] = run(provider, retries=0).records
    assert record.reward is None
    assert record.error is not None
    assert (record.error.boundary, record.error.caused_by) == ("reward", OUTSIDE[kind])


@pytest.mark.parametrize("error", [SandboxLostError("gone"), CapacityError("full")])
@pytest.mark.parametrize("provider_type", [Restarting, FailsToGrade])
def test_a_lost_sandbox_and_a_lack_of_capacity_are_tried_again(
    run: Any, tmp_path: Path, error: SandboxError, provider_type: type[Restarting]
) -> None:
    report = run(provider_type(error))
    assert report.stopped is None
    assert len(list(read_records(tmp_path / "job"))) == 2
    assert "host" not in report.causes


def test_a_lack_of_capacity_is_tried_again_when_the_provider_says(run: Any) -> None:
    provider = FailsToGrade()
    provider.faults.fail_on["create"] = CapacityError("full", retry_after=0.25)
    started = time.monotonic()
    [record] = run(provider, retries=1).records
    assert time.monotonic() - started >= 0.25
    assert record.error is not None
    assert record.error.retry_after == 0.25


@pytest.mark.parametrize("kind", [QuotaError, CostLimitError, CredentialsError])
@pytest.mark.parametrize("provider_type", [Restarting, FailsToGrade])
def test_an_account_that_refuses_stops_the_job_which_can_be_continued(
    run: Any, tmp_path: Path, kind: type[SandboxError], provider_type: type[Restarting]
) -> None:
    report = run(provider_type(kind("no more today")), repeats=3, concurrency=1)
    assert (report.planned, report.finished, report.scored) == (3, 1, 0)
    assert report.stopped is not None
    assert kind.__name__ in report.stopped or "RewardError" in report.stopped
    assert "no more today" in report.stopped
    assert not report.complete
    assert len(list(read_records(tmp_path / "job"))) == 1
    again = run(FailsToGrade(), repeats=3, concurrency=1)
    assert (again.scored, again.stopped, again.complete) == (3, None, True)


def test_a_resumed_job_counts_its_attempts_on_in_a_later_epoch(run: Any) -> None:
    first, second = Restarting(GONE), Restarting()
    run(first, retries=0)
    run(second)
    assert {each.attempt for each in second.identities} == {2}
    before, after = first.identities[0], second.identities[0]
    assert str(before.epoch) < str(after.epoch)
    assert (after.deadline or 0) >= (before.deadline or 0) > 0


def test_where_no_sandbox_can_be_made_a_job_ends_before_its_first_rollout(
    run: Any, tmp_path: Path
) -> None:
    missing = SandboxUnsupportedError("no engine answers", hint="start it")
    provider = FakeSandboxProvider(fail_on={"ready": missing})
    with pytest.raises(SandboxUnsupportedError, match="no engine answers"):
        run(provider, concurrency=4)
    assert provider.operations == []
    assert list(read_records(tmp_path / "job")) == []


def test_a_job_that_forks_nothing_asks_for_no_capabilities(run: Any) -> None:
    class Unprobed(FakeSandboxProvider):
        async def capabilities(self) -> SandboxCapabilities:
            raise AssertionError("seconds of probing that nobody needs")

    assert run(Unprobed()).finished == 1


def test_jobs_without_a_name_that_begin_in_one_second_are_two(tmp_path):
    first, second, third = (new_directory(tmp_path / "jobs") for _ in range(3))
    assert len({first, second, third}) == 3
    assert all(each.is_dir() for each in (first, second, third))


def test_a_job_without_a_name_where_none_can_be_made_is_refused_by_type(tmp_path):
    (tmp_path / "jobs").write_text("")
    with pytest.raises(StoreError, match="cannot create job directory"):
        new_directory(tmp_path / "jobs")


def test_a_job_that_another_process_runs_is_not_run_beside_it(run: Any, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    with held(tmp_path / "job"), pytest.raises(UsageError, match="run by another process"):
        run(FakeSandboxProvider())
    assert [path.name for path in (tmp_path / "job").iterdir()] == [".lock"]
    assert run(FakeSandboxProvider()).finished == 1


def test_a_job_is_not_run_where_nothing_can_be_locked(
    run: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StoreError, match="No locks available") as caught:
        run(FakeSandboxProvider())
    assert "--jobs-dir" in caught.value.hint
    assert list(read_records(tmp_path / "job")) == []
