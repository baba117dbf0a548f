"""The order and the failures of ManifestEnvironment, in a fake sandbox."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from benchflow_contracts import (
    EnvironmentError_,
    EnvState,
    ExecResult,
    ManifestError,
    ProvisionContext,
    SandboxError,
    SandboxSpec,
    SnapshotError,
)
from benchflow_env_manifest import ManifestEnvironment, manifest_environment
from benchflow_testing.fakes import (
    FakeCall,
    FakeSandbox,
    FakeSandboxProvider,
    FakeStreams,
)

STATELESS = """
[environment]
name = "office"
base_image = "host"
owns_lifecycle = false
[environment.readiness]
timeout_sec = 5
[[environment.services]]
name = "mail"
command = "mail-service"
port = 9001
"""
WHO = "uid=10001(agent) gid=10001(agent) groups=10001(agent),20(dialout)"
ROOT = "41ed 0 0 2 /"
STATEFUL = STATELESS + '[environment.state]\npaths = ["/data/mail.db"]\n'


async def forever(call: FakeCall, streams: FakeStreams) -> int:
    await asyncio.Event().wait()
    return 0


def answer(code: int = 0, stdout: str = "", stderr: str = "") -> ExecResult:
    return ExecResult(exit_code=code, stdout=stdout, stderr=stderr, duration_sec=0)


def in_box(
    folder: Path,
    text: str,
    test: Callable[[ManifestEnvironment, FakeSandbox], Awaitable[None]],
) -> None:
    async def main() -> None:
        path = folder / "environment.toml"
        path.write_text(text)
        environment = manifest_environment(path)()
        assert isinstance(environment, ManifestEnvironment)
        box = await FakeSandboxProvider().create(SandboxSpec())
        box.on("sh -c", lambda call: answer())
        box.on_spawn("mail-service", forever)
        await test(environment, box)
        await environment.teardown()
        await environment.teardown()

    asyncio.run(main())


def test_nothing_but_teardown_works_before_provision(tmp_path: Path):
    async def test(environment: ManifestEnvironment, box: FakeSandbox):
        for call in (environment.readiness, environment.query, environment.reset):
            with pytest.raises(EnvironmentError_, match="'office' is not provisioned"):
                await call()

    in_box(tmp_path, STATELESS, test)


def test_without_a_state_table_there_is_nothing_to_roll_back(tmp_path: Path):
    async def test(environment: ManifestEnvironment, box: FakeSandbox):
        await environment.provision(ProvisionContext(box, "t"))
        assert await environment.query() == EnvState()
        with pytest.raises(RuntimeError, match=r"no \[environment\.state\]"):
            await environment.snapshot()

    in_box(tmp_path, STATELESS, test)


def test_one_object_is_provisioned_once(tmp_path: Path):
    async def test(environment: ManifestEnvironment, box: FakeSandbox):
        handle = await environment.provision(ProvisionContext(box, "t"))
        assert (handle.name, handle.services) == ("office", ("mail",))
        with pytest.raises(EnvironmentError_, match="already provisioned"):
            await environment.provision(ProvisionContext(box, "t"))

    in_box(tmp_path, STATELESS, test)


def test_a_provision_that_fails_leaves_nothing_running(tmp_path: Path):
    async def test(environment: ManifestEnvironment, box: FakeSandbox):
        box.provider.faults.fail_on["spawn"] = SandboxError("no processes left")
        with pytest.raises(SandboxError, match="no processes left"):
            await environment.provision(ProvisionContext(box, "t"))
        del box.provider.faults.fail_on["spawn"]
        await environment.provision(ProvisionContext(box, "t"))

    in_box(tmp_path, STATELESS, test)


@pytest.mark.parametrize(
    ("answers", "refused"),
    [
        ([ROOT, "41ed 0 0 2 /data"], None),
        ([ROOT], None),
        ([ROOT, "41ed 10001 0 2 /data"], "'/data' can be written or replaced"),
        ([ROOT, "41fd 0 10001 2 /data"], "'/data' can be written or replaced"),
        ([ROOT, "41fd 0 20 2 /data"], "'/data' can be written or replaced"),
        ([ROOT, "41fd 0 0 2 /data"], None),
        ([ROOT, "43ff 0 0 2 /data"], "'/data' can be written or replaced"),
        ([ROOT, "a1ff 0 0 1 /data"], "'/data' is not a directory"),
        ([ROOT, "81a4 0 0 2 /data/mail.db"], "has a second hard link"),
        ([ROOT, "11a4 0 0 1 /data/mail.db-wal"], "db-wal' is not a regular file"),
        ([ROOT, "81a4 10001 0 1 /data/mail.db"], "can be written or replaced"),
        ([ROOT, "81a4 0 0 1 /etc/passwd"], "an unexpected result"),
        ([ROOT, "81a4 0 0"], "an unexpected result"),
        ([], "an unexpected result"),
    ],
)
def test_state_must_be_out_of_the_agent_s_reach(
    tmp_path: Path, answers: list[str], refused: str | None
):
    async def test(environment: ManifestEnvironment, box: FakeSandbox):
        box.on("sh -c", lambda call: answer())
        box.on("id", lambda call: answer(stdout=f"{WHO}\n"))
        box.on("stat -c", lambda call: answer(stdout="\n".join(answers)))
        if refused is None:
            await environment.provision(ProvisionContext(box, "t"))
            return
        with pytest.raises(EnvironmentError_) as caught:
            await environment.provision(ProvisionContext(box, "t"))
        assert refused in str(caught.value)
        assert "spawn" not in box.provider.operations

    in_box(tmp_path, STATEFUL, test)


def test_a_box_without_any_client_cannot_be_gated(tmp_path: Path):
    async def test(environment: ManifestEnvironment, box: FakeSandbox):
        await environment.provision(ProvisionContext(box, "t"))
        with pytest.raises(EnvironmentError_, match="no python3, curl or bash"):
            await environment.readiness()

    in_box(tmp_path, STATELESS, test)


@pytest.mark.parametrize("said", ["", "{}", "[]", '{"a": ""}', '{"a": 1}', "{", "null"])
def test_a_probe_that_talks_nonsense_never_means_ready(tmp_path: Path, said: str):
    async def test(environment: ManifestEnvironment, box: FakeSandbox):
        box.on(
            "sh -c", lambda call: answer(stdout="python3\n" if "command -v" in call.cmd[2] else "")
        )
        box.on("python3 -IS", lambda call: answer(stdout=said))
        await environment.provision(ProvisionContext(box, "t"))
        with pytest.raises(EnvironmentError_, match="probe printed no result"):
            await environment.readiness()

    in_box(tmp_path, STATELESS, test)


def test_without_a_program_that_copies_databases_the_error_says_what_to_install(tmp_path: Path):
    async def test(environment: ManifestEnvironment, box: FakeSandbox):
        box.on("sh -c", lambda call: answer())
        box.on("id", lambda call: answer(stdout=f"{WHO}\n"))
        box.on("stat -c", lambda call: answer(stdout=f"{ROOT}\n"))
        box.on("rm -rf", lambda call: answer())
        await environment.provision(ProvisionContext(box, "t"))
        with pytest.raises(EnvironmentError_, match="neither python3") as caught:
            await environment.snapshot()
        assert "add one of them to the image" in caught.value.hint

    in_box(tmp_path, STATEFUL, test)


def test_a_broken_manifest_is_refused_when_it_is_loaded(tmp_path: Path):
    path = tmp_path / "environment.toml"
    path.write_text("[environment]\n")
    with pytest.raises(ManifestError, match=r"environment\.name: missing"):
        manifest_environment(path)


FORKED = (
    STATELESS
    + """
[[environment.invariants]]
name = "whole"
command = "ask-whether-whole"
expect = "yes"
[environment.fork]
reseed = ["first-hook", "second-hook"]
"""
)


def test_reseed_runs_the_hooks_in_order_with_the_seed(tmp_path: Path):
    async def test(environment: ManifestEnvironment, box: FakeSandbox):
        hooks: list[tuple[str, ...]] = []

        def hook(call: FakeCall) -> ExecResult:
            hooks.append(tuple(call.cmd))
            return answer(code=len(hooks) - 2 if len(hooks) > 2 else 0)

        box.on("env BENCHFLOW_SEED=7", hook)
        await environment.provision(ProvisionContext(box, "t"))
        await environment.reseed(7)
        assert [words[-1] for words in hooks] == ["first-hook", "second-hook"]
        with pytest.raises(EnvironmentError_, match="a reseed hook failed"):
            await environment.reseed(7)

    in_box(tmp_path, FORKED, test)


def test_live_services_names_each_running_service_and_refuses_one_that_has_ended(tmp_path: Path):
    async def test(environment: ManifestEnvironment, box: FakeSandbox):
        await environment.provision(ProvisionContext(box, "t"))
        carried = await environment.live_services()
        assert list(carried) == ["mail"]
        (running,) = environment._world._services.running
        assert carried["mail"] == running.process.id
        await running.process.kill()
        async with asyncio.timeout(30):
            while running.exit_code is None:  # noqa: ASYNC110 - the watcher's next turn sets it
                await asyncio.sleep(0)
        with pytest.raises(SnapshotError, match="has ended cannot be captured"):
            await environment.live_services()
        with pytest.raises(EnvironmentError_, match="'mail' ended"):
            await environment.check()

    in_box(tmp_path, FORKED, test)


def test_a_live_child_attaches_and_starts_nothing(tmp_path: Path):
    async def test(environment: ManifestEnvironment, box: FakeSandbox):
        process = await box.spawn("mail-service", user="root", cwd="/")
        attached: list[str] = []

        async def attach(process_id: str):
            attached.append(process_id)
            return process

        box.attach = attach
        spawned = box.provider.operations.count("spawn")
        with pytest.raises(EnvironmentError_, match=r"\['chat'\] are not in the manifest"):
            await environment.provision(
                ProvisionContext(box, "t", resumed=True, live_services={"chat": "p1"})
            )
        handle = await environment.provision(
            ProvisionContext(box, "t", resumed=True, live_services={"mail": "p9"})
        )
        assert (attached, handle.services) == (["p9"], ("mail",))
        assert box.provider.operations.count("spawn") == spawned
        assert await environment.live_services() == {"mail": process.id}

    in_box(tmp_path, FORKED, test)


@pytest.mark.parametrize(("said", "broken"), [("yes\n", False), ("no\n", True)])
def test_an_invariant_that_does_not_hold_is_named(tmp_path: Path, said: str, broken: bool):
    async def test(environment: ManifestEnvironment, box: FakeSandbox):
        box.on("sh -c ask-whether", lambda call: answer(stdout=said))
        await environment.provision(ProvisionContext(box, "t"))
        if not broken:
            await environment.check()
            return
        with pytest.raises(EnvironmentError_, match="'whole': expected 'yes', got 'no'"):
            await environment.check()

    in_box(tmp_path, FORKED, test)
