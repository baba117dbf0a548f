"""Orders to a job that runs, and what a job survives."""

import asyncio
import hashlib
import json
import os
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import (
    BenchFlowError,
    Completion,
    SandboxUnsupportedError,
    SnapshotError,
    StoreError,
    TaskError,
    UsageError,
)
from benchflow_engine.config import RunConfig
from benchflow_engine.posthoc.run_inputs import RunInputs
from benchflow_engine.scaffold import write_task
from benchflow_jobs import JobConfig, JobReport, job_view, preflight, resume_job, run_job
from benchflow_jobs import orders as order
from benchflow_jobs.control_socket import (
    SOCKET_FILE,
    JobNotRunningError,
    running_process,
    send_order,
    serve_orders,
)
from benchflow_jobs.holding import RolloutHolds
from benchflow_jobs.job_record import JobLimits
from benchflow_jobs.offline import change_job
from benchflow_jobs.scheduling import Latch
from benchflow_store import read_records
from benchflow_store.database import DATABASE_FILE, JobReader, JobWriter, verify
from benchflow_store.database.connection import connect
from benchflow_store.database.schema import create_or_check
from benchflow_testing.fakes import FakeSandboxProvider
from pydantic import ValidationError
from watching import until


class Gate(FakeSandboxProvider):
    """Creates a sandbox for an agent only when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.open = asyncio.Event()
        self.waiting = asyncio.Semaphore(0)
        self.rollouts = set[str | None]()

    async def create(self, *args: Any, **options: Any) -> Any:
        self.rollouts.add(options["identity"].rollout)
        self.waiting.release()
        await self.open.wait()
        return await super().create(*args, **options)


Scenario = Callable[[Gate, Path], Awaitable[None]]
Work = Callable[[], Coroutine[Any, Any, JobReport]]
SCORED = {"status": "completed", "reward": 1.0, "error": None, "cause": None}


def job_config(tmp_path: Path, **tables: Any) -> JobConfig:
    return JobConfig.model_validate(
        {
            "job": {"name": "j", "jobs_dir": tmp_path},
            "dataset": {"paths": (str(tmp_path / "tasks"),)},
            "design": {"replications": 4},
            "run": {"agent": {"name": "nop"}},
            "concurrency": {"slots": 2},
            "retry": {"retries": 0},
            **tables,
        }
    )


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs a job beside a scenario, and returns its report."""
    write_task(tmp_path / "tasks" / "one")

    async def both(work: Work, act: Scenario) -> JobReport:
        gate = Gate()

        @asynccontextmanager
        async def opened(_: RunConfig) -> AsyncIterator[FakeSandboxProvider]:
            yield gate

        monkeypatch.setattr(preflight, "open_provider", opened)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(work())
            await act(gate, tmp_path / "j")
        return running.result()

    def go(
        act: Scenario,
        work: Callable[[], Coroutine[Any, Any, JobReport]] | None = None,
        **tables: Any,
    ) -> JobReport:
        config = job_config(tmp_path, **tables)
        return asyncio.run(both(work or (lambda: run_job(config)), act))

    return go


async def started(gate: Gate, count: int) -> None:
    for _ in range(count):
        await gate.waiting.acquire()


async def send(job: Path, sent: order.Order) -> order.Reply:
    return await asyncio.to_thread(send_order, job, sent)


def statuses(job: Path) -> list[str]:
    with JobReader(job / DATABASE_FILE) as reader:
        return [slot.status for slot in reader.state().slots]


def test_a_paused_job_starts_nothing_until_it_is_resumed(play: Any) -> None:
    async def act(gate: Gate, job: Path) -> None:
        await started(gate, 2)
        reply = await send(job, order.Pause(by="ann", reason="look"))
        assert (reply.ok, reply.message) == (True, "paused the job; 2 rollouts are running")
        gate.open.set()
        while (view := job_view(job)).failed < 2:
            await asyncio.to_thread(threading.Event().wait, 0.01)
        assert (view.status, view.process, view.running) == ("paused", os.getpid(), ())
        assert view.pause is not None
        assert (view.pause["by"], view.pause["reason"]) == ("ann", "look")
        assert len(gate.rollouts) == 2
        assert (await send(job, order.Resume())).message == "resumed the job"

    report = play(act)
    assert (report.status, report.finished, report.stopped) == ("completed", 4, None)


def test_a_running_job_has_a_heartbeat_with_its_counts_and_an_ended_one_its_last(
    play: Any, tmp_path: Path
) -> None:
    async def act(gate: Gate, job: Path) -> None:
        await started(gate, 2)
        beat = job_view(job).heartbeat
        assert beat is not None
        assert (beat.process, beat.is_late, beat.has_ended) == (os.getpid(), False, False)
        assert sum(beat.slots.values()) == 4
        gate.open.set()

    play(act)
    beat = job_view(tmp_path / "j").heartbeat
    assert beat is not None
    assert (beat.has_ended, beat.is_late) == (True, False)
    assert (beat.slots["failed"], beat.slots["waiting"], beat.slots["running"]) == (4, 0, 0)


async def eventually(what: str, condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(until, what, condition)


def test_a_pause_now_holds_what_runs_until_it_is_resumed(play: Any) -> None:
    async def act(gate: Gate, job: Path) -> None:
        await started(gate, 2)
        reply = await send(job, order.Pause(by="ann", now=True))
        assert reply.message == "paused the job; 2 rollouts stand still"
        gate.open.set()
        await eventually(
            "frozen sandboxes", lambda: [box.gate.frozen for box in gate.live] == [True, True]
        )
        view = job_view(job)
        assert (len(view.running), view.failed) == (2, 0)
        assert view.pause is not None
        assert (view.pause["held"], view.pause["freezing"], view.pause["by"]) == (2, 0, "ann")
        again = await send(job, order.Pause(scope="variant", name="default", now=True))
        assert again.message == "paused variant 'default'; 2 rollouts stand still"
        await send(job, order.Resume())
        view = job_view(job)
        assert view.pause is not None
        assert (view.pause["scope"], view.pause["held"]) == ("variant", 2)
        await send(job, order.Resume(scope="variant", name="default"))

    report = play(act)
    assert (report.status, report.finished) == ("completed", 4)


def test_a_rollout_that_cannot_be_frozen_runs_on_and_the_status_says_so(play: Any) -> None:
    async def act(gate: Gate, job: Path) -> None:
        why = "no freezer is mounted"
        gate.faults.fail_on["freeze"] = SandboxUnsupportedError(why)
        await started(gate, 2)
        await send(job, order.Pause(now=True))
        gate.open.set()
        await eventually("no rollout", lambda: not job_view(job).running)
        assert len(gate.rollouts) == 2
        del gate.faults.fail_on["freeze"]
        await send(job, order.Resume())

    seen: list[dict[str, Any]] = []

    async def watch(gate: Gate, job: Path) -> None:
        async with asyncio.TaskGroup() as group:
            acting = group.create_task(act(gate, job))
            while not acting.done():
                with suppress(StoreError, UsageError):
                    seen.append(dict(job_view(job).pause or {}))
                await asyncio.sleep(0.005)

    assert play(watch).finished == 4
    said = [each["running_on"] for each in seen if each.get("running_on")]
    assert {reason for each in said for reason in each} == {"no freezer is mounted"}


def test_a_pause_that_keeps_saves_what_runs_and_a_resume_continues_it(play: Any) -> None:
    async def act(gate: Gate, job: Path) -> None:
        await started(gate, 2)
        reply = await send(job, order.Pause(keep=True))
        assert reply.message == "paused the job; 2 rollouts run until they can be saved"
        gate.open.set()
        await eventually("two saved rollouts", lambda: not job_view(job).running)
        await eventually("their number", lambda: (job_view(job).pause or {})["saved"] == 2)
        view = job_view(job)
        assert view.pause is not None
        assert (view.pause["saving"], view.pending) == (0, 4)
        assert len(gate.rollouts) == 2
        assert not gate.live
        await send(job, order.Resume())

    report = play(act)
    assert (report.status, report.finished) == ("completed", 4)
    began = [each.began_from.point for each in report.records]
    assert began == ["checkpoint", "checkpoint", "start", "start"]


def test_what_a_job_changes_of_a_task_holds_in_a_resume_and_in_later_runs(
    play: Any, tmp_path: Path
) -> None:
    image, seconds = "of-the-job", 60.0

    async def act(gate: Gate, job: Path) -> None:
        await started(gate, 2)
        await send(job, order.Pause(keep=True))
        gate.open.set()
        await eventually("two saved rollouts", lambda: not job_view(job).running)
        await send(job, order.Resume())

    override = {"agent_timeout_sec": seconds, "env": {"SIZE": "3"}, "image": image}
    report = play(act, tasks={"one": override})
    began = [each.began_from.point for each in report.records]
    assert began == ["checkpoint", "checkpoint", "start", "start"]
    for record in report.records:
        task = RunInputs.read(tmp_path / "j" / record.rollout_id).task
        assert task.config.agent.timeout_sec == seconds
        assert (task.config.environment.image, task.config.environment.env) == (
            image,
            {"SIZE": "3"},
        )


def test_a_rollout_that_cannot_be_saved_runs_on_and_the_status_says_so(play: Any) -> None:
    async def act(gate: Gate, job: Path) -> None:
        gate.faults.fail_on["save"] = SnapshotError("no room")
        await started(gate, 2)
        await send(job, order.Pause(keep=True))
        seen.append(job_view(job).pause)
        gate.open.set()
        await eventually("two rollouts that ended", lambda: job_view(job).failed == 2)
        await send(job, order.Resume())

    seen: list[Any] = []
    assert play(act).finished == 4
    assert seen[0]["saving"] == 2


def test_a_pause_either_holds_or_saves() -> None:
    with pytest.raises(ValidationError, match="exclude each other"):
        order.Pause(now=True, keep=True)


def test_the_rollouts_of_workers_that_cannot_hold_them_run_on() -> None:
    report = RolloutHolds(lambda _: {Latch()}, "workers cannot").report(3)
    assert str(report) == "0 rollouts stand still; 3 run on: workers cannot"
    assert report.as_fields() == {"held": 0, "freezing": 0, "running_on": {"workers cannot": 3}}


def test_a_drained_or_cancelled_job_holds_nothing(play: Any, tmp_path: Path) -> None:
    def held_and(sent: order.Order) -> Scenario:
        async def act(gate: Gate, job: Path) -> None:
            await started(gate, 2)
            await send(job, order.Pause(now=True))
            gate.open.set()
            await eventually("two sandboxes", lambda: len(gate.live) == 2)
            await send(job, sent)

        return act

    assert play(held_and(order.Drain())).finished == 2
    report = play(held_and(order.Cancel()), lambda: resume_job(tmp_path / "j"))
    assert report.status == "interrupted"


class Listener:
    """Notes what it is called with."""

    def __init__(self) -> None:
        self.limits: list[JobLimits] = []
        self.attempts: list[tuple[str, str]] = []
        self.rewards: list[dict[int, float]] = []

    def planned(self, job: str, slots: Any, rewards: Any) -> None:
        self.rewards.append(dict(rewards))

    def limited(self, limits: JobLimits) -> None:
        self.limits.append(limits)

    def extended(self, total: int) -> None:
        pass

    def started(self, slot: Any) -> Callable[[object], None]:
        return lambda event: None

    def attempted(self, slot: Any, completion: Completion) -> None:
        self.attempts.append((slot.name, completion.status))

    def finished(self, slot: Any, record: Any) -> None:
        pass


def test_a_listener_learns_the_limits_in_force_and_why(play: Any, tmp_path: Path) -> None:
    listener = Listener()

    async def act(gate: Gate, job: Path) -> None:
        await started(gate, 2)
        await send(job, order.Pause(by="ann", reason="look"))
        await send(job, order.SetLimits(slots=3, cost_usd=5))
        await send(job, order.Resume())
        await started(gate, 1)
        await send(job, order.Drain(by="drain by ann"))
        gate.open.set()

    play(act, lambda: run_job(job_config(tmp_path), listener=listener))
    assert [
        (dict(each.resources), dict(each.pauses), each.ending, each.budget.cost_usd)
        for each in listener.limits
    ] == [
        ({"slots": 2}, {}, "", None),
        ({"slots": 2}, {"the job": "look (by ann)"}, "", None),
        ({"slots": 3}, {"the job": "look (by ann)"}, "", 5),
        ({"slots": 3}, {}, "", 5),
        ({"slots": 3}, {}, "interrupted by drain by ann", 5),
    ]
    assert listener.rewards == [{}]
    assert sorted(listener.attempts) == [(f"one#{n}", "unscored") for n in range(3)]


def test_what_a_kill_left_beside_a_plan_is_completed_by_a_resume(play: Any, tmp_path: Path) -> None:
    async def go(gate: Gate, job: Path) -> None:
        gate.open.set()

    play(go)
    job = tmp_path / "j"
    digest = (job / "job.digest").read_text()
    (job / "job.digest").rename(job / ".job.digest.tmp")
    play(go, lambda: resume_job(job))
    assert (job / "job.digest").read_text() == digest
    assert list(job.glob(".*.tmp")) == []


def test_a_drained_job_ends_with_what_ran_and_can_be_resumed(play: Any, tmp_path: Path) -> None:
    async def act(gate: Gate, job: Path) -> None:
        await started(gate, 2)
        await send(job, order.Drain(by="drain by ann"))
        gate.open.set()

    report = play(act)
    assert (report.status, report.stopped) == ("interrupted", "interrupted by drain by ann")
    assert report.finished == 2

    async def go(gate: Gate, job: Path) -> None:
        gate.open.set()

    again = play(go, lambda: resume_job(tmp_path / "j"))
    assert (again.status, again.finished) == ("completed", 4)


@pytest.mark.parametrize(
    ("sent", "status"), [(order.Cancel(), "interrupted"), (order.Kill(), "killed")]
)
def test_a_cancelled_job_records_what_was_cut_short(
    play: Any, sent: order.Order, status: str
) -> None:
    async def act(gate: Gate, job: Path) -> None:
        await started(gate, 2)
        assert (await send(job, sent)).message == "ending 2 rollouts"

    report = play(act)
    assert (report.status, report.finished) == (status, 0)
    assert [record.status for record in report.records] == ["cancelled", "cancelled"]


def test_attempts_that_were_cut_short_do_not_use_up_the_attempts_of_a_slot(
    play: Any, tmp_path: Path
) -> None:
    async def act(gate: Gate, job: Path) -> None:
        await started(gate, 2)
        await send(job, order.Kill())

    one_attempt = {"retry": {"retries": 0, "max_attempts": 1}}
    play(act, **one_attempt)
    for _ in range(2):
        play(act, lambda: resume_job(tmp_path / "j"))
    assert statuses(tmp_path / "j") == ["pending"] * 4

    async def go(gate: Gate, job: Path) -> None:
        gate.open.set()

    assert play(go, lambda: resume_job(tmp_path / "j")).finished == 4
    with JobReader(tmp_path / "j" / DATABASE_FILE) as reader:
        assert [each.attempt for each in reader.attempts() if each.index == 0] == [1, 2, 3, 4]


def test_a_rollout_over_its_deadline_fails_with_the_cause(play: Any, tmp_path: Path) -> None:
    async def act(gate: Gate, job: Path) -> None:
        await started(gate, 4)

    late = {"budget": {"rollout_sec": 0.2}, "retry": {"retries": 2, "max_attempts": 1}}
    report = play(act, **late)
    assert report.status == "completed"
    assert statuses(tmp_path / "j") == ["failed"] * 4
    errors = [each.error for each in report.records if each.error is not None]
    assert {each.type for each in errors} == {"RolloutTimeoutError"}
    assert {each.message for each in errors} == {"the rollout took longer than 0.2 s"}
    assert len(errors) == 4
    # Its own failure uses up its only attempt, so a resume runs nothing.
    play(act_not, lambda: resume_job(tmp_path / "j"))
    with JobReader(tmp_path / "j" / DATABASE_FILE) as reader:
        assert len(reader.attempts()) == 4


async def act_not(gate: Gate, job: Path) -> None:
    """Give no order."""


def test_a_job_is_extended_and_its_limits_are_changed_while_it_runs(play: Any) -> None:
    async def act(gate: Gate, job: Path) -> None:
        await started(gate, 2)
        reply = await send(job, order.Extend(replications=6))
        assert reply.message == "added 2 slots; the job has 6"
        more = {"id": "more", "agent": {"name": "nop"}, "bindings": {"x": 1}}
        reply = await send(job, order.Extend(variants=(more,)))
        assert reply.message == "added 6 slots; the job has 12"
        again = await send(job, order.Extend(variants=(more,)))
        assert again.message == "the job has all of this already"
        await send(job, order.SetLimits(slots=5))
        reply = await send(job, order.SetLimits(slots=1 << 30))
        assert not reply.ok
        assert "rollouts at one time need about" in reply.message
        await started(gate, 3)
        gate.open.set()

    report = play(act)
    assert (report.status, report.planned, report.finished) == ("completed", 12, 12)


def test_slots_that_are_added_while_the_last_rollout_ends_run(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(gate: Gate, job: Path) -> None:
        extend = JobWriter.extend

        async def extend_late(writer: JobWriter, *what: Any) -> int:
            gate.open.set()
            await asyncio.to_thread(until, "the ends", lambda: "pending" not in statuses(job))
            await send(job, order.SetLimits(slots=2))
            return await extend(writer, *what)

        monkeypatch.setattr(JobWriter, "extend", extend_late)
        await started(gate, 2)
        reply = await send(job, order.Extend(replications=5))
        assert reply.message == "added 1 slots; the job has 5"

    report = play(act)
    assert (report.status, report.planned, report.finished) == ("completed", 5, 5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"agent": {"name": "nowhere"}},
        {"sandbox": {"provider": "nowhere"}},
        {"agent": {"name": "nop"}, "model": {"base_url": "http://127.0.0.1:9/nowhere"}},
    ],
)
def test_a_variant_that_cannot_run_is_not_added_to_a_job(
    play: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any]
) -> None:
    """A resume checks every variant, so the job could not continue."""
    right = {"id": "right", "agent": {"name": "nop"}, "bindings": {"x": 1}}
    sent = order.Extend(variants=(right, {"id": "wrong", **wrong}))

    def is_nowhere(run: RunConfig) -> None:
        if run.sandbox.provider == "nowhere":
            raise UsageError("no provider 'nowhere'")

    async def act(gate: Gate, job: Path) -> None:
        opened: Any = preflight.open_provider

        def open_known(run: RunConfig) -> Any:
            is_nowhere(run)
            return opened(run)

        monkeypatch.setattr(preflight, "open_provider", open_known)
        await started(gate, 2)
        reply = await send(job, sent)
        assert not reply.ok
        assert "nowhere" in reply.message
        reply = await send(job, order.Extend(variants=(right,)))
        assert reply.message == "added 4 slots; the job has 8"
        gate.open.set()

    assert play(act).planned == 8
    with pytest.raises(BenchFlowError, match="nowhere"):
        asyncio.run(change_job(tmp_path / "j", sent))
    assert len(statuses(tmp_path / "j")) == 8

    async def go(gate: Gate, job: Path) -> None:
        gate.open.set()

    assert play(go, lambda: resume_job(tmp_path / "j")).planned == 8


def test_a_task_whose_verifier_does_not_exist_is_not_added_to_a_job(
    play: Any, tmp_path: Path
) -> None:
    write_task(tmp_path / "two")
    path = tmp_path / "two" / "task.toml"
    path.write_text(path.read_text().replace('type = "script"', 'type = "nowhere"'))
    assert "nowhere" in path.read_text()
    sent = order.Extend(tasks=(str(tmp_path / "two"),))

    async def act(gate: Gate, job: Path) -> None:
        await started(gate, 2)
        reply = await send(job, sent)
        assert (reply.ok, "task 'two'" in reply.message) == (False, True)
        gate.open.set()

    assert play(act).planned == 4
    with pytest.raises(TaskError, match="nowhere"):
        asyncio.run(change_job(tmp_path / "j", sent))
    config = job_config(tmp_path, dataset={"paths": (str(tmp_path / "two"),)}, job={"name": "k"})
    with pytest.raises(TaskError, match="nowhere"):
        asyncio.run(run_job(config))


def test_a_job_whose_directory_was_renamed_continues_under_its_new_name(
    play: Any, tmp_path: Path
) -> None:
    async def go(gate: Gate, job: Path) -> None:
        gate.open.set()

    play(go)
    renamed = (tmp_path / "j").rename(tmp_path / "renamed")
    asyncio.run(change_job(renamed, order.Extend(replications=5)))
    report = play(go, lambda: resume_job(renamed))
    assert (report.status, report.finished, report.job) == ("completed", 5, "renamed")
    view = job_view(renamed)
    assert (view.job, view.slots, view.epoch) == ("renamed", 5, 3)
    assert verify(renamed).problems == ()


def test_a_job_that_does_not_run_is_extended_and_requeued(play: Any, tmp_path: Path) -> None:
    async def go(gate: Gate, job: Path) -> None:
        gate.open.set()

    one_attempt = {"retry": {"retries": 0, "max_attempts": 1}}
    play(go, **one_attempt)
    job = tmp_path / "j"
    assert statuses(job) == ["failed"] * 4
    with pytest.raises(JobNotRunningError, match="no process runs job 'j'"):
        send_order(job, order.Pause())
    reply = asyncio.run(change_job(job, order.Extend(replications=5)))
    assert reply.message == "added 1 slots; the job has 5"
    play(go, lambda: resume_job(job))
    assert len(list(read_records(job))) == 5
    with pytest.raises(UsageError, match=r"no slot matches 'two#\*', 'sandbox'"):
        asyncio.run(change_job(job, order.Requeue(slots=("two#*",), errors=("sandbox",))))
    reply = asyncio.run(change_job(job, order.Requeue(slots=("one#[01]",))))
    assert reply.message == "requeued 2 slots"
    reply = asyncio.run(change_job(job, order.Requeue(slots=("one#[01]",))))
    assert reply.message == "requeued nothing: the 2 chosen slots have a score, or wait, or run"
    reply = asyncio.run(change_job(job, order.Extend(replications=5)))
    assert reply.message == "the job has all of this already"
    assert statuses(job) == ["pending"] * 2 + ["failed"] * 3
    assert verify(job).problems == ()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{}\n", "not an order"),
        (b'{"do": "explode"}\n', "not an order"),
        (b"\xff\xfe\n", "not an order"),
        (b"x" * (1 << 21), "longer than"),
        (b'{"do": "pause", "scope": "variant", "name": "nope"}\n', "no variant 'nope'"),
    ],
)
def test_a_wrong_order_is_answered_and_changes_nothing(play: Any, line: bytes, says: str) -> None:
    def ask(job: Path) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as client:
            descriptor = os.open(job / "runtime", os.O_RDONLY)
            client.connect(f"/proc/self/fd/{descriptor}/control.sock")
            os.close(descriptor)
            with suppress(BrokenPipeError):
                client.sendall(line)
            reply: dict[str, Any] = json.loads(client.makefile("rb").readline())
            return reply

    async def act(gate: Gate, job: Path) -> None:
        await started(gate, 2)
        reply = await asyncio.to_thread(ask, job)
        assert reply["ok"] is False
        assert says in reply["message"]
        gate.open.set()

    assert play(act).status == "completed"


def test_only_the_owner_can_open_the_socket_which_is_gone_at_the_end(
    play: Any, tmp_path: Path
) -> None:
    async def act(gate: Gate, job: Path) -> None:
        await started(gate, 2)
        assert (job / SOCKET_FILE).stat().st_mode & 0o777 == 0o600
        assert await asyncio.to_thread(running_process, job) == os.getpid()
        gate.open.set()

    play(act)
    assert not (tmp_path / "j" / SOCKET_FILE).exists()


def test_each_pause_is_shown_until_it_is_resumed(play: Any) -> None:
    async def act(gate: Gate, job: Path) -> None:
        await started(gate, 2)
        for scope, name in (("job", ""), ("variant", "default")):
            await send(job, order.Pause(scope=scope, name=name, reason=scope))
        reply = await send(job, order.Resume(scope="variant", name="default"))
        assert reply.message == "resumed variant 'default'; still paused: the job"
        view = job_view(job)
        assert view.pause is not None
        assert (view.status, view.pause["scope"], view.pause["reason"]) == ("paused", "job", "job")
        reply = await send(job, order.Resume(scope="variant", name="default"))
        assert reply.message == "variant 'default' was not paused; still paused: the job"
        assert (await send(job, order.Resume())).message == "resumed the job"
        assert job_view(job).pause is None
        await send(job, order.Drain(by="drain by ann"))
        reply = await send(job, order.Resume())
        assert (reply.ok, reply.message) == (
            False,
            "the job is ending: it was interrupted by drain by ann",
        )
        gate.open.set()

    assert play(act).status == "interrupted"


def test_two_orders_at_once_that_add_slots_follow_each_other(play: Any) -> None:
    def variant(name: str) -> order.Extend:
        return order.Extend(variants=({"id": name, "bindings": {"x": name}},))

    async def act(gate: Gate, job: Path) -> None:
        await started(gate, 2)
        async with asyncio.TaskGroup() as group:
            replies = [group.create_task(send(job, variant(name))) for name in "abcd"]
        assert all(reply.result().ok for reply in replies)
        gate.open.set()

    report = play(act, breaker={"job_after": 99, "variant_after": 99})
    assert (report.status, report.planned, report.finished) == ("completed", 20, 20)


def test_an_order_whose_client_has_given_up_is_not_carried_out(play: Any) -> None:
    async def act(gate: Gate, job: Path) -> None:
        await started(gate, 2)
        descriptor = os.open(job / "runtime", os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as client:
            # The event loop of the job stands still meanwhile, as a stopped process does.
            client.connect(f"/proc/self/fd/{descriptor}/control.sock")
            client.sendall(order.Pause().model_dump_json().encode() + b"\n")
        os.close(descriptor)
        assert (await send(job, order.Resume())).message == "the job was not paused"
        gate.open.set()

    assert play(act).status == "completed"


def test_clients_that_send_half_an_order_hold_nothing_up(play: Any) -> None:
    clients: list[socket.socket] = []

    def connect(job: Path) -> None:
        descriptor = os.open(job / "runtime", os.O_RDONLY)
        for _ in range(40):
            client = socket.socket(socket.AF_UNIX)
            client.connect(f"/proc/self/fd/{descriptor}/control.sock")
            client.sendall(b'{"do": "pa')
            clients.append(client)
        os.close(descriptor)

    async def act(gate: Gate, job: Path) -> None:
        await started(gate, 2)
        await asyncio.to_thread(connect, job)
        assert (await send(job, order.SetLimits(slots=1))).ok
        gate.open.set()

    report = play(act)
    assert (report.status, report.finished) == ("completed", 4)
    for client in clients:
        client.close()


def test_an_order_that_fails_is_answered_and_the_job_continues(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    async def act(gate: Gate, job: Path) -> None:
        await started(gate, 2)
        monkeypatch.setattr(JobWriter, "extend", fail)
        reply = await send(job, order.Extend(replications=5))
        assert (reply.ok, reply.message) == (False, "the order failed: RuntimeError: a bug")
        gate.open.set()

    assert play(act).finished == 4


def test_a_link_or_an_old_file_in_the_place_of_the_socket_is_not_a_running_job(
    play: Any, tmp_path: Path
) -> None:
    path = tmp_path / "j" / SOCKET_FILE
    path.parent.mkdir(parents=True)
    other = tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(other))
        listener.listen()
        path.symlink_to(other)
        with pytest.raises(JobNotRunningError):
            running_process(tmp_path / "j")
        path.unlink()
        path.parent.rmdir()
        path.parent.symlink_to(tmp_path, target_is_directory=True)
        other.rename(tmp_path / path.name)
        with pytest.raises(JobNotRunningError):
            running_process(tmp_path / "j")
    path.parent.unlink()
    path.parent.mkdir()
    (tmp_path / path.name).rename(path)
    with pytest.raises(JobNotRunningError):
        running_process(tmp_path / "j")

    async def act(gate: Gate, job: Path) -> None:
        await started(gate, 2)
        assert await asyncio.to_thread(running_process, job) == os.getpid()
        gate.open.set()

    assert play(act).status == "completed"


def test_a_process_that_accepts_nothing_more_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "runtime").mkdir()
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(str(tmp_path / SOCKET_FILE))
        listener.listen(0)
        first.connect(str(tmp_path / SOCKET_FILE))
        with pytest.raises(StoreError, match="does not answer"):
            running_process(tmp_path)


def test_a_place_where_the_socket_cannot_be_made_is_named(play: Any, tmp_path: Path) -> None:
    (tmp_path / "j" / SOCKET_FILE).mkdir(parents=True)

    async def act(gate: Gate, job: Path) -> None:
        gate.open.set()

    with pytest.raises(ExceptionGroup) as caught:
        play(act)
    assert caught.group_contains(StoreError, match=r"cannot make '.*control\.sock'")


def test_a_second_driver_fences_the_first_whose_lock_was_removed(play: Any, tmp_path: Path) -> None:
    async def act(gate: Gate, job: Path) -> None:
        await started(gate, 2)
        (job / ".lock").unlink()
        async with JobWriter(job / DATABASE_FILE, "j") as second:
            await second.begin()
            gate.open.set()

    report = play(act)
    assert report.status == "paused"
    assert report.stopped is not None
    assert "a later writer has taken the job over" in report.stopped
    assert report.finished == 0
    assert statuses(tmp_path / "j") == ["pending"] * 4


def test_a_job_that_was_killed_before_its_first_commit_runs(play: Any, tmp_path: Path) -> None:
    (tmp_path / "j").mkdir()
    database = connect(tmp_path / "j" / DATABASE_FILE, "create")
    create_or_check(database)
    database.close()

    async def go(gate: Gate, job: Path) -> None:
        gate.open.set()

    report = play(go)
    assert (report.status, report.finished) == ("completed", 4)


def test_the_socket_of_a_later_driver_is_not_deleted_by_an_earlier_one(tmp_path: Path) -> None:
    async def receive(_: order.Order) -> order.Reply:
        return order.Reply(ok=True, message="")

    async def run() -> None:
        async with serve_orders(tmp_path, receive):
            path = tmp_path / SOCKET_FILE
            path.rename(path.with_name("earlier"))
            path.touch()
        assert path.exists()

    asyncio.run(run())


def test_a_result_that_a_power_cut_tore_stays_and_its_slot_runs_again(
    play: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def go(gate: Gate, job: Path) -> None:
        gate.open.set()

    play(go)
    job = tmp_path / "j"
    for path in job.glob("*/result.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | SCORED))
    for name in (DATABASE_FILE, f"{DATABASE_FILE}-wal", f"{DATABASE_FILE}-shm"):
        (job / name).unlink(missing_ok=True)
    torn = sorted(job.glob("*/result.json"))[0]
    torn.write_bytes(torn.read_bytes()[:40])
    before = set(job.glob("*/result.json"))
    report = play(go, lambda: resume_job(job))
    assert (report.status, report.planned, report.scored) == ("completed", 4, 3)
    assert len(set(job.glob("*/result.json")) - before) == 1
    assert torn.stat().st_size == 40
    assert str(torn) in caplog.text


def test_a_result_whose_commit_was_lost_is_adopted_and_not_run_again(
    play: Any, tmp_path: Path
) -> None:
    async def go(gate: Gate, job: Path) -> None:
        gate.open.set()

    play(go)
    job = tmp_path / "j"
    for path in job.glob("*/result.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | SCORED))
    for name in (DATABASE_FILE, f"{DATABASE_FILE}-wal", f"{DATABASE_FILE}-shm"):
        (job / name).unlink(missing_ok=True)
    events = (job / "facts" / "events.jsonl").read_bytes()
    kinds = [json.loads(line)["kind"] for line in events.splitlines()]
    assert [kinds.count(kind) for kind in ("rollout_started", "rollout_finished")] == [4, 4]
    shutil.rmtree(job / "facts")
    for path in job.glob("*/result.json"):
        path.with_name(".tree.json.tmp").touch()

    async def look(gate: Gate, job: Path) -> None:
        gate.open.set()
        gate.faults.fail_on["create"] = AssertionError("nothing is left to run")

    report = play(look, lambda: resume_job(job))
    assert (report.status, report.scored) == ("completed", 4)
    assert len((job / "facts" / "trials.jsonl").read_text().splitlines()) == 4
    assert not list(job.glob("*/.*.tmp"))
    assert (job / "facts" / "events.jsonl").read_bytes() == events


def test_the_files_of_scored_rollouts_are_artifacts_if_the_job_wants_them(
    play: Any, tmp_path: Path
) -> None:
    async def go(gate: Gate, job: Path) -> None:
        gate.open.set()

    play(go, evidence={"store": True})
    job = tmp_path / "j"
    assert not (job / "artifacts").exists()
    link = next(path.parent for path in job.glob("*/result.json")) / "agent" / "stolen"
    link.parent.mkdir(exist_ok=True)
    link.symlink_to("/etc/passwd")
    for path in job.glob("*/result.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | SCORED))
    for name in (DATABASE_FILE, f"{DATABASE_FILE}-wal", f"{DATABASE_FILE}-shm"):
        (job / name).unlink(missing_ok=True)
    for name in ("facts", "evidence"):
        shutil.rmtree(job / name)
    play(go, lambda: resume_job(job))
    lines = (job / "evidence" / "evidence_records.jsonl").read_text().splitlines()
    for line in map(json.loads, lines):
        artifacts = line["artifacts"]
        assert {
            "inputs/config.json",
            "outputs/tree.json",
            "outputs/result.json",
        } <= artifacts.keys()
        assert "logs/agent/stolen" not in artifacts
        config = artifacts["inputs/config.json"]
        data = (job / line["rollout_id"] / "config.json").read_bytes()
        assert config["ref"].endswith(hashlib.sha256(data).hexdigest())
        assert config["size"] == len(data)
    report = verify(job)
    assert (report.problems, report.artifacts > 0) == ((), True)
    next((job / "artifacts").glob("sha256/*/*")).write_bytes(b"changed")
    assert not verify(job).ok


def test_one_permanent_error_pauses_the_job_and_says_why(play: Any, tmp_path: Path) -> None:
    async def act(gate: Gate, job: Path) -> None:
        gate.faults.fail_on["create"] = UsageError("this can never work")
        gate.open.set()

    listener = Listener()
    config = {"design": {"replications": 50}, "breaker": {"job_after": 4, "variant_after": 4}}
    report = play(act, lambda: run_job(job_config(tmp_path, **config), listener=listener))
    reason = listener.limits[-1].pauses["the job"]
    assert reason.startswith("4 times running: ")
    assert report.status == "paused"
    assert report.stopped is not None
    assert report.stopped.count("4 times running: ") == 1
    assert "this can never work" in report.stopped
    assert report.finished < 10


def test_a_job_with_a_damaged_record_is_refused(play: Any, tmp_path: Path) -> None:
    async def go(gate: Gate, job: Path) -> None:
        gate.open.set()

    play(go)
    (tmp_path / "j" / DATABASE_FILE).write_bytes(b"not a database" * 1000)
    with pytest.raises(StoreError, match="not a database"):
        asyncio.run(resume_job(tmp_path / "j"))
