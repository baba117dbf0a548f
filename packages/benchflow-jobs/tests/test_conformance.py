"""The parts of a job pass the kit."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import Dispatch, ExecResult
from benchflow_engine.flags import run_config
from benchflow_engine.scaffold import write_task
from benchflow_jobs.driver import SystemClock
from benchflow_jobs.executor import EngineExecutor, RolloutInputs
from benchflow_jobs.job_record import DatabaseRecord
from benchflow_jobs.local_backend import LocalBackend
from benchflow_kernel import load_task
from benchflow_store.database import JobWriter
from benchflow_testing import (
    BackendCheck,
    BackendSubject,
    CheckResult,
    ExecutorSubject,
    JobStoreCheck,
    JobStoreSubject,
    backend_checks,
    check_clock,
    check_executor,
    job_store_checks,
    resizable_backend_checks,
    run_check,
)
from benchflow_testing.fakes import FakeCall, FakeExecutor, FakeSandboxProvider
from database_job import DatabaseJob
from job_records import planned


def all_passed(results: list[CheckResult]) -> None:
    assert [(each.name, each.reason) for each in results if each.status != "passed"] == []


@pytest.mark.parametrize("check", [*backend_checks(), *resizable_backend_checks()], ids=str)
def test_the_local_backend_keeps_the_promises(check: BackendCheck, tmp_path: Path) -> None:
    subject = BackendSubject(lambda capacity: LocalBackend(FakeExecutor(), capacity), tmp_path)
    asyncio.run(run_check(check, subject)).raise_if_failed()


def test_the_clock_of_the_machine_keeps_the_promises() -> None:
    all_passed(asyncio.run(check_clock(SystemClock())))


@pytest.mark.parametrize("check", job_store_checks(), ids=str)
def test_the_record_of_the_driver_keeps_the_promises(check: JobStoreCheck, tmp_path: Path) -> None:
    def record_of(writer: JobWriter) -> DatabaseRecord:
        return DatabaseRecord(writer, tmp_path, planned(4))

    async def new_job() -> DatabaseJob:
        return DatabaseJob(tmp_path / "record.db", record_of)

    asyncio.run(run_check(check, JobStoreSubject(new_job))).raise_if_failed()


class Grading(FakeSandboxProvider):
    """Its tests earn 1. From the slot `endless` on, its sandboxes answer nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.hanging: list[Any] = []
        done = ExecResult(exit_code=0, stdout="", stderr="", duration_sec=0)
        self.on("/bin/sh -c set -eu", lambda _call: done)

        def earn(call: FakeCall) -> ExecResult:
            call.sandbox.files.put("/logs/verifier/reward.txt", "1")
            return done

        self.on("/bin/sh -c [ ! -x /bin/bash ]", earn)

    async def create(self, *args: Any, **options: Any) -> Any:
        sandbox = await super().create(*args, **options)
        if options["identity"].slot == "endless":
            self.faults.hang_on |= {"exec", "spawn", "upload"}
            self.hanging.append(sandbox)
        return sandbox


def test_the_executor_of_the_engine_keeps_the_promises(tmp_path: Path) -> None:
    write_task(tmp_path / "task")
    task = load_task(tmp_path / "task")
    provider = Grading()
    number = itertools.count()

    def dispatch(index: int, slot: str = "scored") -> Dispatch:
        rollout = f"r{next(number)}"
        return Dispatch(job="j", index=index, slot=slot, attempt=1, epoch=1, rollout=rollout)

    def inputs(dispatch: Dispatch) -> RolloutInputs:
        agent = "gone" if dispatch.slot == "failing" else "nop"
        return RolloutInputs(provider, task, run_config(agent=agent))

    executor = EngineExecutor(tmp_path, inputs)
    subject = ExecutorSubject(
        executor,
        dispatch,
        failing=lambda index: dispatch(index, "failing"),
        endless=lambda index: dispatch(index, "endless"),
        is_running=lambda _dispatch: any(each in provider.live for each in provider.hanging),
    )
    all_passed(asyncio.run(check_executor(subject)))
