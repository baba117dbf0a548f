"""Jobs whose rollouts run in other processes: payloads, files, refusals and capacity.

The workers are tasks here. They get only what a process on another host would get, as JSON.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest
from benchflow_contracts import (
    CapacityError,
    Completion,
    Dispatch,
    ExecResult,
    FileRef,
    ReapPolicy,
    RolloutIdentity,
    SandboxError,
    StoreError,
    Ticket,
    UsageError,
    VerifyResult,
)
from benchflow_contracts.redaction import MASK
from benchflow_engine.scaffold import write_task
from benchflow_jobs import JobReport
from benchflow_jobs.attempt_evidence import fetch_files
from benchflow_jobs.local_backend import LocalBackend
from benchflow_jobs.planning import JobSource, load_plan, parse_job
from benchflow_jobs.preflight import check_job
from benchflow_jobs.runner import resume_job, run_job
from benchflow_kernel import load_path
from benchflow_kernel.errors import UnknownProviderError
from benchflow_store import read_groups, read_records
from benchflow_store.database import JobReader, LocalEvidenceStore, ObjectEvidenceStore, verify
from benchflow_testing.fakes import FakeCall, FakeSandboxProvider

HERE = "workers_here"
SECRET = "s3cr3t-value-of-the-agent"


class Sandboxes(FakeSandboxProvider):
    """Sandboxes whose tests earn 1."""

    made: ClassVar[list["Sandboxes"]] = []

    def __init__(self, *, allow_unisolated: bool = False) -> None:
        super().__init__()
        self.identities: list[RolloutIdentity] = []
        self.made.append(self)
        self.on("/bin/sh -c set -eu", lambda call: _done())
        self.on("/bin/sh -c [ ! -x /bin/bash ]", self._earn)

    async def create(self, *args: Any, **options: Any) -> Any:
        self.identities.append(options["identity"])
        return await super().create(*args, **options)

    def _earn(self, call: FakeCall) -> ExecResult:
        call.sandbox.files.put("/logs/verifier/reward.txt", "1")
        return _done()


def _done() -> ExecResult:
    return ExecResult(exit_code=0, stdout="", stderr="", duration_sec=0)


class Workers:
    """A backend of two parts: a driver's side, and a worker that opens the executor."""

    made: ClassVar[list["Workers"]] = []

    def __init__(
        self,
        executor: str,
        capacity: Mapping[str, int],
        *,
        options: Mapping[str, Any],
        on_capacity: Callable[[Mapping[str, int]], None],
        slots: int = 2,
    ) -> None:
        if slots < 0:
            raise UsageError("slots must not be negative")
        self._executor = executor
        self._options = json.loads(json.dumps(options))
        self.limits = dict(capacity)
        self._slots = slots
        self._on_capacity = on_capacity
        self._blocks = AsyncExitStack()
        self.dispatches: list[Dispatch] = []
        self.most = 0
        if options:  # not the check before the job
            self.made.append(self)

    async def start(self) -> None:
        opened: Any = load_path(self._executor)
        executor = await self._blocks.enter_async_context(opened(**self._options))
        self._backend = LocalBackend(executor, {})
        await self._backend.start()
        self._on_capacity(self.capacity())

    def capacity(self) -> Mapping[str, int]:
        return {"slots": min(self._slots, self.limits.get("slots", self._slots))}

    async def submit(self, dispatch: Dispatch) -> Ticket:
        self.dispatches.append(dispatch)
        self.most = max(self.most, len(self._backend._works) + 1)
        return await self._backend.submit(Dispatch.model_validate_json(dispatch.model_dump_json()))

    async def completions(self) -> AsyncIterator[Completion]:
        async for completion in self._backend.completions():
            yield Completion.model_validate_json(completion.model_dump_json())

    async def cancel(self, ticket: Ticket, grace_sec: float) -> None:
        await self._backend.cancel(ticket, grace_sec)

    async def close(self) -> None:
        if hasattr(self, "_backend"):
            await self._backend.close()
        await self._blocks.aclose()


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, HERE, sys.modules[__name__])
    yield
    Workers.made.clear()
    Sandboxes.made.clear()


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., JobReport]:
    for name in ("one", "two"):
        write_task(tmp_path / "tasks" / name)

    def run(**tables: Any) -> JobReport:
        return asyncio.run(run_job(parse_job(JobSource(source(tmp_path, **tables)))))

    return run


def source(tmp_path: Path, **tables: Any) -> dict[str, Any]:
    run = {"agent": {"name": "nop"}, "sandbox": {"import_path": f"{HERE}:Sandboxes"}}
    return {
        "job": {"name": "job", "jobs_dir": str(tmp_path)},
        "dataset": {"paths": [str(tmp_path / "tasks")]},
        "run": run,
        "design": {"replications": 2},
        "backend": {"name": f"{HERE}:Workers"},
        "retry": {"pauses_sec": [0]},
        **tables,
    }


def outcome(report: JobReport) -> list[tuple[Any, ...]]:
    return sorted((each.slot, each.status, each.reward, each.attempt) for each in report.records)


def test_a_job_on_workers_has_the_results_of_a_local_job(
    play: Callable[..., JobReport], tmp_path: Path
) -> None:
    report = play(job={"name": "far", "jobs_dir": str(tmp_path)})
    near = play(job={"name": "near", "jobs_dir": str(tmp_path)}, backend={})
    assert outcome(report) == outcome(near)
    assert [each[2] for each in outcome(report)] == [1.0] * 4
    (workers,) = Workers.made
    assert workers.limits == {}
    assert workers.most == 2
    far, here = (load_plan(tmp_path / name) for name in ("far", "near"))
    assert far is not None and here is not None
    assert far.digest == here.digest
    identity = Sandboxes.made[0].identities[0]
    assert (identity.scope, identity.job_dir) == ("far", str(tmp_path / "far"))
    assert {path.name for path in (tmp_path / "far").iterdir()} - {"workers.mark"} >= {
        each.rollout_id for each in report.records
    }


def test_slots_of_the_job_limit_the_workers(play: Callable[..., JobReport]) -> None:
    assert play(concurrency={"slots": 1}).complete
    assert (Workers.made[0].limits, Workers.made[0].most) == ({"slots": 1}, 1)


def test_files_come_back_through_the_evidence_store(
    play: Callable[..., JobReport], tmp_path: Path
) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    report = play(evidence={"url": bucket.as_uri()})
    assert report.complete
    job = tmp_path / "job"
    assert len(list(read_records(job))) == 4
    for record in report.records:
        home = job / record.rollout_id
        assert json.loads((home / "result.json").read_text())["reward"] == 1
        assert {"config.json", "events.jsonl", "tree.json", "timing.json"} <= {
            path.name for path in home.iterdir()
        }
        assert (home / "config.json").stat().st_mode & 0o077 == 0
    assert not (job / "artifacts").exists()
    assert verify(job, evidence=ObjectEvidenceStore(bucket.as_uri())).ok
    assert not verify(job).ok
    # The worker saw a directory of its own, which is gone.
    assert not (job / "workers.mark").exists()


class Places:
    """A group reward: the place of each leaf."""

    name = "reward"

    async def score_group(self, task: Any, leaves: Sequence[Any]) -> list[VerifyResult]:
        del task
        return [VerifyResult(reward=float(place)) for place, _ in enumerate(leaves, 1)]


@pytest.mark.parametrize("is_far", [False, True])
def test_a_group_reward_scores_the_rollouts_of_workers(
    play: Callable[..., JobReport], tmp_path: Path, is_far: bool
) -> None:
    run = {**source(tmp_path)["run"], "reward": {"group_import_path": f"{HERE}:Places"}}
    (tmp_path / "bucket").mkdir()
    more = {"evidence": {"url": (tmp_path / "bucket").as_uri()}} if is_far else {}
    report = play(run=run, **more)
    groups = read_groups(tmp_path / "job")
    assert [[leaf.result.reward for leaf in group.leaves] for group in groups] == [[1, 2], [1, 2]]
    assert [group.lost for group in groups] == [(), ()]
    # Each number says whose rewards it has.
    assert report.mean_reward == 1.0
    [mean] = report.group_means
    assert (mean.reward, mean.groups, mean.leaves, mean.mean, mean.lost) == ("reward", 2, 4, 1.5, 0)


def test_files_of_a_failed_rollout_come_back_too(
    play: Callable[..., JobReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: Any, *args: Any, **options: Any) -> Any:
        raise StoreError("the sandbox is broken")

    monkeypatch.setattr(Sandboxes, "create", fail)
    (tmp_path / "bucket").mkdir()
    report = play(evidence={"url": (tmp_path / "bucket").as_uri()}, retry={"retries": 0})
    assert report.scored == 0
    assert (tmp_path / "job" / report.records[0].rollout_id / "result.json").exists()


def test_secrets_stay_here_and_workers_take_them_from_their_variables(
    play: Callable[..., JobReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = {"name": "nop", "env": {"AGENT_TOKEN": SECRET, "LANG": "C"}}
    run = {"agent": agent, "sandbox": {"import_path": f"{HERE}:Sandboxes"}}
    report = play(run=run, design={"replications": 1})
    assert report.scored == 0
    with JobReader(tmp_path / "job" / "record.db") as reader:
        errors = [each.attempt.error for each in reader.slots() if each.attempt]
    assert [each and each.boundary for each in errors] == ["usage", "usage"]
    for dispatch in Workers.made[0].dispatches:
        assert SECRET not in dispatch.model_dump_json()
        env = dispatch.payload["run"]["agent"]["env"]  # type: ignore[index,call-overload]
        assert env["AGENT_TOKEN"] == MASK  # type: ignore[index,call-overload]
        assert env["LANG"] == "C"  # type: ignore[index,call-overload]
    monkeypatch.setenv("AGENT_TOKEN", SECRET)
    assert play(run=run, design={"replications": 1}).complete


def test_a_worker_without_the_directory_of_the_job_is_refused(
    play: Callable[..., JobReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Workers.start

    async def elsewhere(self: Workers) -> None:
        self._options["directory"] = str(tmp_path / "gone")
        await start(self)

    monkeypatch.setattr(Workers, "start", elsewhere)
    with pytest.raises(UsageError, match="does not see the job's directory") as error:
        play()
    assert "evidence.url" in str(error.value.hint)


def test_a_task_that_differs_on_a_worker_is_not_run(
    play: Callable[..., JobReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Workers.start

    async def change(self: Workers) -> None:
        await start(self)
        with (tmp_path / "tasks" / "one" / "instruction.md").open("a") as file:
            file.write("more")

    monkeypatch.setattr(Workers, "start", change)
    report = play()
    assert report.scored == 2
    with JobReader(tmp_path / "job" / "record.db") as reader:
        errors = [each.attempt.error for each in reader.slots() if each.attempt]
    assert {each.type for each in errors if each is not None} == {"UsageError"}


def test_a_job_on_workers_is_resumed(
    play: Callable[..., JobReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sandboxes, "_earn", lambda self, call: (_ for _ in ()).throw(OSError(5)))
    assert not play(retry={"retries": 0}).complete
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, HERE, sys.modules[__name__])
    report = asyncio.run(resume_job(tmp_path / "job"))
    assert report.complete
    assert len(Workers.made) == 2


@pytest.mark.parametrize(
    ("backend", "error", "message"),
    [
        ({"name": "rai"}, UnknownProviderError, "no benchflow.backends named 'rai'"),
        ({"name": f"{HERE}:no_such"}, UsageError, "cannot be loaded"),
        ({"name": f"{HERE}:SECRET"}, UsageError, "cannot be called"),
        (
            {"name": f"{HERE}:Workers", "options": {"slot": 2}},
            UsageError,
            "has no option 'slot'; did you mean 'slots'?",
        ),
    ],
    ids=["unknown", "missing", "no factory", "option"],
)
def test_a_wrong_backend_is_refused_before_anything_runs(
    play: Callable[..., JobReport], tmp_path: Path, backend: Any, error: Any, message: str
) -> None:
    config = parse_job(JobSource(source(tmp_path, backend=backend)))
    checks = asyncio.run(check_job(config))
    assert [each.name for each in checks if each.error is not None] == ["backend"]
    with pytest.raises(error) as raised:
        play(backend=backend)
    assert message in str(raised.value)
    assert not (tmp_path / "job").exists()


def test_a_job_of_workers_continues_in_one_process(
    play: Callable[..., JobReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def break_down(self: Any, *args: Any, **options: Any) -> Any:
        raise SandboxError("the host is broken")

    with monkeypatch.context() as patch:
        patch.setattr(Sandboxes, "create", break_down)
        assert play(retry={"retries": 0}).scored == 0
    assert play(backend={}).complete
    assert len(Workers.made) == 1


class NoWorkersError(CapacityError):
    stops_job = True


def test_a_job_without_workers_stops_and_is_resumed(
    play: Callable[..., JobReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(self: Workers, dispatch: Dispatch) -> Ticket:
        raise NoWorkersError("no worker is left")

    async def start(self: Workers) -> None:
        await begin(self)
        self._on_capacity({"slots": 0})

    begin = Workers.start
    with monkeypatch.context() as patch:
        patch.setattr(Workers, "submit", refuse)
        patch.setattr(Workers, "start", start)
        report = play()
    assert report.stopped is not None
    assert "no worker is left" in report.stopped
    assert asyncio.run(resume_job(tmp_path / "job")).complete


def test_a_worker_first_removes_what_dead_workers_left(
    play: Callable[..., JobReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies: list[ReapPolicy] = []

    async def reap(self: Sandboxes, policy: ReapPolicy) -> list[Any]:
        policies.append(policy)
        return []

    monkeypatch.setattr(Sandboxes, "reap", reap)
    assert play().complete
    selected = RolloutIdentity(scope="job", job_dir=str(tmp_path / "job"), epoch="1")
    assert policies[0].dead_owners
    assert policies[0].selects(selected)
    assert not policies[0].selects(selected.model_copy(update={"scope": "other"}))
    assert not policies[0].selects(selected.model_copy(update={"job_dir": "/other"}))


def test_artifacts_of_a_local_job_can_be_at_a_url(
    play: Callable[..., JobReport], tmp_path: Path
) -> None:
    (tmp_path / "bucket").mkdir()
    url = (tmp_path / "bucket").as_uri()
    assert play(backend={}, evidence={"url": url}).complete
    report = verify(tmp_path / "job", evidence=ObjectEvidenceStore(url))
    assert report.ok
    assert report.artifacts > 4


@pytest.mark.parametrize("slots", [-1, "many"])
def test_a_wrong_value_of_an_option_is_an_error_of_the_operator(
    play: Callable[..., JobReport], tmp_path: Path, slots: Any
) -> None:
    with pytest.raises(UsageError):
        play(backend={"name": f"{HERE}:Workers", "options": {"slots": slots}})
    assert not (tmp_path / "job").exists()


def test_a_backend_that_is_not_installed_names_its_extra(
    play: Callable[..., JobReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchflow_kernel.registry._extras", lambda: frozenset({"far"}))
    with pytest.raises(UnknownProviderError) as error:
        play(backend={"name": "far"})
    assert error.value.hint == "pip install 'benchflow[far]'"


def test_an_evidence_store_that_cannot_be_opened_is_refused(
    play: Callable[..., JobReport], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="cannot open the artifacts at 'nowhere://x'"):
        play(evidence={"url": "nowhere://x"})
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize("role", ["outputs/../../x", "other//etc/x", "x", "other/", "other/a\0"])
def test_a_path_out_of_the_rollout_is_refused(tmp_path: Path, role: str) -> None:
    async def fetch() -> None:
        store = LocalEvidenceStore(tmp_path / "store")
        digest = await store.put(b"x")
        await fetch_files(store, [FileRef(role=role, sha256=digest, size=1)], tmp_path / "r")

    with pytest.raises(StoreError, match="not a path in the directory"):
        asyncio.run(fetch())
    assert not (tmp_path / "r").exists()
