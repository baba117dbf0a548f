"""A provider of five methods: create, exec, upload, download and teardown."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import (
    BaseProvider,
    BaseSandbox,
    ExecResult,
    RolloutIdentity,
    Sandbox,
    SandboxCapabilities,
    SandboxSpec,
    UsageError,
    VerifyResult,
)
from benchflow_engine.config import RunConfig
from benchflow_engine.flags import run_config
from benchflow_engine.scaffold import write_task
from benchflow_jobs import JobOptions, JobReport, preflight
from benchflow_jobs.runner import run_job
from benchflow_reward import AskedUser, ExactMatch, MemoryFiles, Rubric, ScriptVerifier
from benchflow_testing.fakes import FakeCall, FakeSandboxProvider

LEAST = SandboxCapabilities(isolation="none", network_modes=frozenset({"none"}), spawn=False)


class LeastSandbox(BaseSandbox):
    """Delegates its four methods to a fake sandbox."""

    def __init__(self, inner: Sandbox) -> None:
        super().__init__(inner.id, inner.spec)
        self._inner = inner

    async def exec(self, cmd: str | Sequence[str], **options: Any) -> ExecResult:
        return await self._inner.exec(cmd, **options)

    async def upload(self, local: Path, remote: str, *, user: str = "root") -> None:
        await self._inner.upload(local, remote, user=user)

    async def download(self, remote: str, local: Path, **options: Any) -> None:
        await self._inner.download(remote, local, **options)

    async def teardown(self) -> None:
        await self._inner.teardown()


class LeastProvider(BaseProvider):
    """Has `create`, and no other method of its own."""

    name = "least"
    static_capabilities = LEAST

    def __init__(self) -> None:
        super().__init__()
        self.inner = FakeSandboxProvider()
        self.inner.on("/bin/sh -c set -eu", done)
        self.inner.on("/bin/sh -c [ ! -x /bin/bash ]", earn)

    async def create(
        self, spec: SandboxSpec, *, image: object = None, identity: RolloutIdentity | None = None
    ) -> LeastSandbox:
        sandbox = self.wrap(await self.inner.create(spec, identity=identity))
        self.track(sandbox)
        return sandbox

    def wrap(self, sandbox: Any) -> LeastSandbox:
        return LeastSandbox(sandbox)


class KillableSandbox(LeastSandbox):
    """A sandbox whose processes can be ended first."""

    async def kill_all(self) -> None:
        await self._inner.kill_all()


class KillableProvider(LeastProvider):
    """The same provider, whose agents can be ended."""

    static_capabilities = LEAST.model_copy(update={"isolation": "container", "kill_all": True})

    def wrap(self, sandbox: Any) -> LeastSandbox:
        return KillableSandbox(sandbox)


def done(call: FakeCall) -> ExecResult:
    return ExecResult(exit_code=0, stdout="", stderr="", duration_sec=0)


def earn(call: FakeCall) -> ExecResult:
    call.sandbox.files.put("/logs/verifier/reward.txt", "1")
    return done(call)


def one_reward(task: object, **_: object) -> list[Any]:
    return [NeedsNothing()]


def answers(task: object, **_: object) -> list[Any]:
    right, wrong = AskedUser(expected=False), ExactMatch(expected="7")
    return [wrong, Rubric(criteria=[(right, 3), (wrong, 1)])]


def memory(task: object, **_: object) -> list[Any]:
    return [Rubric(criteria=[(MemoryFiles(directory="/workspace"), 1)])]


def script(task: object, **_: object) -> list[Any]:
    return [ScriptVerifier()]


class NeedsNothing:
    """A reward that does not look into the sandbox."""

    name = "reward"

    async def score(self, node: Any, evidence: Any) -> Any:
        return VerifyResult(reward=0.5)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    write_task(tmp_path / "task")

    def go(provider: LeastProvider, **options: Any) -> JobReport:
        @asynccontextmanager
        async def opened(_: RunConfig) -> AsyncIterator[LeastProvider]:
            yield provider
            await provider.aclose()

        monkeypatch.setattr(preflight, "open_provider", opened)
        chosen = run_config(agent="nop", sandbox="least", **options)
        return asyncio.run(
            run_job(JobOptions(tasks_dir=tmp_path / "task", jobs_dir=tmp_path, run=chosen))
        )

    return go


def test_what_a_provider_does_not_say_it_cannot_do() -> None:
    assert BaseProvider.static_capabilities == SandboxCapabilities(isolation="none", spawn=False)


def test_five_methods_and_an_end_of_all_processes_run_and_grade_a_rollout(run: Any) -> None:
    provider = KillableProvider()
    [record] = run(provider).records
    assert (record.status, record.reward, record.grading) == ("completed", 1, "hermetic")
    assert "kill_all" in provider.inner.operations
    assert not {"freeze", "snapshot", "spawn"} & set(provider.inner.operations)
    assert provider.inner.live == []


def test_five_methods_alone_are_refused_before_the_agent_where_tests_need_more(run: Any) -> None:
    provider = LeastProvider()
    [record] = run(provider).records
    assert record.reward is None
    assert record.error is not None
    assert record.error.type == "SandboxUnsupportedError"
    assert provider.inner.operations == []


def test_five_methods_alone_run_a_rollout_whose_reward_needs_no_sandbox(run: Any) -> None:
    provider = LeastProvider()
    [record] = run(provider, reward_import_path=f"{__name__}:one_reward").records
    assert (record.status, record.reward) == ("completed", 0.5)
    assert provider.inner.live == []


def test_five_methods_alone_score_an_answer_and_a_rubric_of_answers(run: Any) -> None:
    provider = LeastProvider()
    [record] = run(provider, reward_import_path=f"{__name__}:answers").records
    assert (record.status, record.reward) == ("completed", 0.75)
    assert provider.inner.live == []


def test_memory_files_need_an_end_of_all_processes_and_no_freeze(run: Any) -> None:
    provider = KillableProvider()
    [record] = run(provider, reward_import_path=f"{__name__}:memory").records
    assert (record.status, record.reward) == ("completed", 0)
    assert "kill_all" in provider.inner.operations


@pytest.mark.parametrize(
    ("reward", "why"),
    [
        ("memory", "cannot be frozen while reward 'reward' reads its files"),
        ("script", "does not have a freeze"),
    ],
)
def test_five_methods_alone_leave_what_reads_files_ungraded(
    run: Any, reward: str, why: str
) -> None:
    [record] = run(LeastProvider(), reward_import_path=f"{__name__}:{reward}").records
    assert record.reward is None
    assert record.error is not None
    assert why in record.error.message


class Nameless:
    """A reward without the name that the contract asks for."""

    async def score(self, node: Any, evidence: Any) -> Any:
        return VerifyResult(reward=1)


def key_missing(task: Any, **_: object) -> list[Any]:
    return [task.config.verifier.options["absent"]]


def nameless(task: object, **_: object) -> list[Any]:
    return [Nameless()]


@pytest.mark.parametrize("flag", ["reward_import_path", "environment_import_path"])
def test_a_plugin_that_cannot_be_imported_is_refused_before_anything_runs(
    run: Any, tmp_path: Path, flag: str
) -> None:
    with pytest.raises(UsageError, match="cannot be loaded"):
        run(LeastProvider(), **{flag: "no_such_module:attr"})
    assert not list(tmp_path.glob("**/record.db"))


@pytest.mark.parametrize("factory", ["key_missing", "nameless"])
def test_a_factory_of_rewards_that_fails_is_named_in_a_record(run: Any, factory: str) -> None:
    path = f"{__name__}:{factory}"
    [record] = run(LeastProvider(), reward_import_path=path).records
    assert record.reward is None
    assert record.error is not None
    assert (record.error.type, path in record.error.message) == ("UsageError", True)
