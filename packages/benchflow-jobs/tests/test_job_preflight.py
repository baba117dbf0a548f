"""The checks of a job before anything runs: every problem at once, and nothing is made."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchflow_contracts import SandboxUnsupportedError, StoreError, UsageError
from benchflow_engine.config import RunConfig
from benchflow_engine.model_endpoint import ModelEndpointError
from benchflow_engine.scaffold import write_task
from benchflow_jobs import JobConfig, preflight, resume_job, run_job
from benchflow_jobs.hold import held
from benchflow_jobs.preflight import Check, PreflightError, check_job
from benchflow_testing.fakes import FakeSandboxProvider

VARIANTS = [
    {"id": "a", "agent": {"name": "nop"}},
    {"id": "b", "agent": {"name": "nop"}, "model": {"upstream": "vllm"}},
]


class OnThisHost(FakeSandboxProvider):
    """States that its rollouts open files of this process."""

    open_files_per_rollout = 1


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> FakeSandboxProvider:
    return use(OnThisHost(), monkeypatch)


def use(provider: FakeSandboxProvider, monkeypatch: pytest.MonkeyPatch) -> FakeSandboxProvider:
    @asynccontextmanager
    async def opened(_: RunConfig) -> AsyncIterator[FakeSandboxProvider]:
        yield provider

    monkeypatch.setattr(preflight, "open_provider", opened)
    return provider


@pytest.fixture
def dead_url() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}/v1"


@pytest.fixture
def job(tmp_path: Path) -> Any:
    write_task(tmp_path / "tasks" / "one")

    def make(**tables: Any) -> JobConfig:
        return JobConfig.model_validate(
            {
                "job": {"name": "j", "jobs_dir": tmp_path / "jobs"},
                "dataset": {"paths": (str(tmp_path / "tasks"),)},
                "run": {"agent": {"name": "nop"}},
                **tables,
            }
        )

    return make


def failures(checks: list[Check]) -> dict[str, str]:
    return {each.name: str(each.error) for each in checks if each.error is not None}


def test_every_problem_is_reported_at_once_and_nothing_is_made(
    job: Any, tmp_path: Path, dead_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = SandboxUnsupportedError("no engine answers", hint="start it")
    provider = use(FakeSandboxProvider(fail_on={"ready": missing}), monkeypatch)
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    variants = [
        {"id": "a", "agent": {"name": "mistral-vibe"}},
        {"id": "b", "agent": {"name": "policy", "model": "m"}, "model": {"base_url": dead_url}},
    ]
    with pytest.raises(PreflightError) as caught:
        asyncio.run(run_job(job(variants=variants)))
    text = str(caught.value)
    assert text.startswith("4 problems of the job, and nothing was started\n")
    for part in (
        "agent 'mistral-vibe' acts through a model (give --base-url URL and --model NAME)",
        "cannot be reached",
        "no engine answers (start it)",
        "2 rollouts need at least 90 kB below",
    ):
        assert part in text
    assert [type(each) for each in caught.value.errors] == [
        UsageError,
        ModelEndpointError,
        SandboxUnsupportedError,
        StoreError,
    ]
    assert not (tmp_path / "jobs").exists()
    assert provider.operations == []


def test_an_endpoint_is_asked_once_for_all_variants(
    job: Any, provider: FakeSandboxProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []

    async def check(run: RunConfig) -> None:
        asked.append(run.model.base_url)

    monkeypatch.setattr(preflight, "check_endpoint", check)
    run = {"agent": {"name": "nop"}, "model": {"base_url": "http://127.0.0.1:1/v1"}}
    assert not failures(asyncio.run(check_job(job(run=run, variants=VARIANTS))))
    assert asked == ["http://127.0.0.1:1/v1"]


def test_a_finished_job_needs_no_endpoint_and_no_disk(
    job: Any, tmp_path: Path, provider: FakeSandboxProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "slots_left", lambda *_: 0)

    async def refuse(_: RunConfig) -> None:
        raise ModelEndpointError("away")

    monkeypatch.setattr(preflight, "check_endpoint", refuse)
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    run = {"agent": {"name": "nop"}, "model": {"base_url": "http://127.0.0.1:1/v1"}}
    names = [each.name for each in asyncio.run(check_job(job(run=run)))]
    assert names == ["record", "lock", "agent", "sandbox provider"]


@pytest.mark.parametrize(
    ("total", "tables", "error", "warning"),
    [
        (100_000, {}, None, None),
        (3500, {}, "4 rollouts at one time may use 4000 MB of memory (1000 MB each)", None),
        (3500, {"concurrency": {"slots": 3}}, None, "may use 3000 MB of memory, and 2000 MB"),
        (3500, {"concurrency": {"memory_mb": 3000}}, None, None),
        (500, {"concurrency": {"slots": 1}}, None, None),
    ],
)
def test_memory_limits_above_the_total_of_the_host_are_refused(
    job: Any,
    provider: FakeSandboxProvider,
    monkeypatch: pytest.MonkeyPatch,
    total: int,
    tables: dict[str, Any],
    error: str | None,
    warning: str | None,
) -> None:
    free = 2000 if total < 100_000 else total
    monkeypatch.setattr(preflight, "_memory_mb", {"MemTotal": total, "MemAvailable": free}.get)
    run = {"agent": {"name": "nop"}, "limits": {"memory_mb": 1000}}
    checks = asyncio.run(check_job(job(run=run, design={"replications": 9}, **tables)))
    failed = failures(checks)
    warnings = [each.warning for each in checks if each.warning]
    assert list(failed) == ([] if error is None else ["memory"])
    assert error is None or error in failed["memory"]
    assert len(warnings) == (warning is not None)
    assert warning is None or warning in warnings[0]


def test_the_memory_of_the_machine_of_the_sandboxes_counts(
    job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OnAnotherHost(OnThisHost):
        async def memory_total_mb(self) -> int:
            return 3500

    use(OnAnotherHost(), monkeypatch)
    monkeypatch.setattr(preflight, "_memory_mb", {"MemTotal": 100, "MemAvailable": 50}.get)
    run = {"agent": {"name": "nop"}, "limits": {"memory_mb": 1000}}
    for slots, failed in ((3, []), (4, ["memory"])):
        tables = {"design": {"replications": 9}, "concurrency": {"slots": slots}}
        checks = asyncio.run(check_job(job(run=run, **tables)))
        assert list(failures(checks)) == failed
        assert [each.warning for each in checks if each.warning] == []
    assert "the host of the sandboxes of 'fake' has 3500 MB" in failures(checks)["memory"]


def test_the_lock_and_the_record_are_checked(
    job: Any, tmp_path: Path, provider: FakeSandboxProvider
) -> None:
    directory = tmp_path / "jobs" / "j"
    with held(directory):
        (directory / "record.db").write_bytes(b"not a database" * 1000)
        failed = failures(asyncio.run(check_job(job())))
        with pytest.raises(PreflightError, match="2 problems"):
            asyncio.run(run_job(job()))
    assert "run by another process" in failed["lock"]
    assert "not a database" in failed["record"]
    assert set(failed) == {"lock", "record"}


def test_a_job_that_passes_its_checks_runs_and_is_resumed(
    job: Any, tmp_path: Path, provider: FakeSandboxProvider
) -> None:
    assert not failures(asyncio.run(check_job(job())))
    assert not (tmp_path / "jobs").exists()
    assert asyncio.run(run_job(job())).finished == 1
    assert asyncio.run(resume_job(tmp_path / "jobs" / "j")).finished == 1
