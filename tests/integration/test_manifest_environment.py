"""ManifestEnvironment in real sandboxes of the local provider."""

from pathlib import Path

import pytest
from bank import ONE, SERVICE, World, accounts, run, world
from benchflow_contracts import (
    EnvironmentError_,
    EnvState,
    ProvisionContext,
    Sandbox,
    SandboxUnsupportedError,
    SnapshotError,
)
from benchflow_env_manifest import manifest_environment
from benchflow_sandbox_local import LocalProvider, LocalSandbox
from benchflow_testing import EnvironmentCheck, check_environment, environment_checks


def test_a_wal_service_is_really_rolled_back_as_its_own_api_shows(tmp_path: Path):
    async def test():
        async with world(tmp_path) as bank:
            snap = await bank.environment.snapshot()
            await bank.call("/1", post=True)
            assert await bank.call("/") == {"a": 1, "b": 40}
            await bank.environment.restore(snap)
            assert await bank.call("/") == {"a": 60, "b": 40}
            assert accounts(await bank.environment.query()) == {"a": 60, "b": 40}
            await bank.call("/7", post=True)
            assert await bank.call("/") == {"a": 7, "b": 40}
            await bank.environment.restore(snap)
            assert await bank.call("/") == {"a": 60, "b": 40}

    run(test)


def test_copying_the_snapshot_s_file_over_the_database_rolls_nothing_back(tmp_path: Path):
    """Why `restore` does not do this: the service's log wins over the file."""

    async def test():
        async with world(tmp_path) as bank:
            snap = await bank.environment.snapshot()
            await bank.call("/1", post=True)
            await bank.root(f"cp {snap.path}/0/0.db /data/bank.db")
            assert await bank.call("/") == {"a": 1, "b": 40}

    run(test)


def test_without_python_the_sqlite3_program_does_the_same(tmp_path: Path):
    async def test():
        async with world(tmp_path) as bank:
            # The service goes on: its interpreter is loaded. New ones are not found.
            await bank.root("mv $(readlink -f $(command -v python3)) /opt/hidden-python")
            environment = manifest_environment(tmp_path / "environment.toml")()
            await environment.provision(ProvisionContext(bank.box, "x"))

    with pytest.raises(EnvironmentError_, match="no service of 'bank' is installed"):
        run(test)

    async def with_cli():
        async with world(tmp_path) as bank:
            environment = bank.environment
            await bank.root("mv $(readlink -f $(command -v python3)) /opt/hidden-python")
            environment._world.shell._tools = None
            snap = await environment.snapshot()
            await bank.call("/1", post=True)
            await environment.restore(snap)
            assert await bank.call("/") == {"a": 60, "b": 40}
            assert (await environment.readiness()).ready
            await bank.root(f"sqlite3 {snap.path}/0/0.db 'UPDATE account SET money = 9'")
            with pytest.raises(EnvironmentError_, match="match its digest"):
                await environment.restore(snap)
            assert await bank.root("ls -d /.bf-state/*/ | wc -l") == "2\n"

    run(with_cli)


def test_two_databases_with_one_basename_keep_apart(tmp_path: Path):
    second = ONE.replace('"/data/bank.db"', '"/data/one/bank.db", "/data/two/bank.db"').replace(
        "/data/bank.db", "/data/one/bank.db"
    ) + (
        '[[environment.services]]\nname = "other"\nport = 9002\n'
        'command = "python3 -I /opt/bank.py /data/two/bank.db 9002"\n'
    )

    async def test():
        async with world(tmp_path, second) as bank:
            await bank.call("/5", 9002, post=True)
            snap = await bank.environment.snapshot()
            await bank.call("/1", 9001, post=True)
            await bank.call("/2", 9002, post=True)
            await bank.environment.restore(snap)
            assert (await bank.call("/", 9001))["a"] == 60
            assert (await bank.call("/", 9002))["a"] == 5
            state = await bank.environment.query()
            assert accounts(state, "/data/one/bank.db")["a"] == 60
            assert accounts(state, "/data/two/bank.db")["a"] == 5

    run(test)


def test_query_and_snapshot_hold_the_invariant_under_a_busy_writer(tmp_path: Path):
    async def test():
        async with world(tmp_path) as bank:
            await bank.call("/busy", post=True)
            for _ in range(50):
                assert sum(accounts(await bank.environment.query()).values()) == 100
            snap = await bank.environment.snapshot()
            await bank.environment.restore(snap)
            assert sum((await bank.call("/")).values()) == 100

    run(test)


def test_query_works_while_the_caller_holds_the_sandbox_still(tmp_path: Path):
    """A checkpoint reads the state and seals the files inside one freeze."""

    async def test():
        async with world(tmp_path) as bank:
            await bank.call("/busy", post=True)
            async with bank.box.freeze():
                first = await bank.environment.query()
                assert sum(accounts(first).values()) == 100
                assert await bank.environment.query() == first
                image = await bank.box.snapshot()
            fork = await bank.provider.create(bank.box.spec, image=image)
            environment = manifest_environment(tmp_path / "environment.toml")()
            try:
                await environment.provision(ProvisionContext(fork, "x", resumed=True))
                assert (await environment.readiness()).ready
                assert await environment.query() == first
            finally:
                await environment.teardown()
                await fork.teardown()

    run(test)


def test_without_freeze_query_asks_sqlite_for_a_copy(tmp_path: Path, monkeypatch):
    def no_freeze(self):
        raise SandboxUnsupportedError("no freezer")

    monkeypatch.setattr(LocalSandbox, "freeze", no_freeze)

    async def test():
        async with world(tmp_path) as bank:
            await bank.call("/busy", post=True)
            before = await bank.root("ls /.bf-state")
            for _ in range(5):
                assert sum(accounts(await bank.environment.query()).values()) == 100
            assert await bank.root("ls /.bf-state") == before

    run(test)


def test_reset_returns_to_the_baseline_with_fresh_services(tmp_path: Path):
    async def test():
        async with world(tmp_path) as bank:
            await bank.call("/busy", post=True)
            await bank.call("/1", post=True)
            await bank.environment.reset()
            assert await bank.call("/") == {"a": 60, "b": 40}
            # The busy thread went with its service.
            first = await bank.environment.query()
            assert await bank.environment.query() == first

    run(test)


def test_a_fork_s_environment_goes_on_from_the_files_and_restores_the_parent_s_snapshot(
    tmp_path: Path,
):
    async def test():
        async with world(tmp_path) as bank:
            snap = await bank.environment.snapshot()
            await bank.call("/1", post=True)
            image = await bank.box.snapshot()
            fork = await bank.provider.create(bank.box.spec, image=image)
            environment = manifest_environment(tmp_path / "environment.toml")()
            try:
                await environment.provision(ProvisionContext(fork, "pay-bob", resumed=True))
                child = World(bank.provider, fork, environment)
                await child.ready()
                assert await child.call("/") == {"a": 1, "b": 40}
                await environment.restore(snap)
                assert await child.call("/") == {"a": 60, "b": 40}
                assert await bank.call("/") == {"a": 1, "b": 40}
            finally:
                await environment.teardown()
                await fork.teardown()

    run(test)


@pytest.mark.parametrize("known", [True, False])
def test_a_fork_is_proven_as_it_runs_when_its_databases_have_known_bytes(
    tmp_path: Path, monkeypatch, known: bool
):
    holds: list[LocalSandbox] = []
    freeze = LocalSandbox.freeze

    def counted(self: LocalSandbox):
        holds.append(self)
        return freeze(self)

    async def test():
        async with world(tmp_path) as bank:
            async with bank.box.freeze():
                expected = await bank.environment.query()
                image = await bank.box.snapshot()
            fork = await bank.provider.create(bank.box.spec, image=image)
            environment = manifest_environment(tmp_path / "environment.toml")()
            try:
                await environment.provision(ProvisionContext(fork, "x", resumed=True))
                child = World(bank.provider, fork, environment)
                await child.ready()
                monkeypatch.setattr(LocalSandbox, "freeze", counted)
                if not known:  # the same rows in other bytes
                    await child.call("/1", post=True)
                    await child.call("/60", post=True)
                await environment.check(expected)
                assert bool(holds) is not known
                await child.call("/1", post=True)
                with pytest.raises(SnapshotError, match="state of its checkpoint"):
                    await environment.check(expected)
            finally:
                await environment.teardown()
                await fork.teardown()

    run(test)


def test_a_tampered_or_foreign_snapshot_is_refused_and_the_world_stays(tmp_path: Path):
    async def test():
        async with world(tmp_path) as bank:
            snap = await bank.environment.snapshot()
            await bank.call("/1", post=True)
            with pytest.raises(EnvironmentError_, match="not created by this environment"):
                await bank.environment.restore(snap.model_copy(update={"path": "/workspace"}))
            await bank.root(f"sqlite3 {snap.path}/0/0.db 'UPDATE account SET money = 9'")
            with pytest.raises(EnvironmentError_, match="match its digest"):
                await bank.environment.restore(snap)
            await bank.root(f"rm -r {snap.path}")
            with pytest.raises(EnvironmentError_, match="not in this sandbox"):
                await bank.environment.restore(snap)
            assert await bank.call("/") == {"a": 1, "b": 40}

    run(test)


def test_a_world_without_state_cannot_be_rolled_back(tmp_path: Path):
    text = ONE.replace('[environment.state]\npaths = ["/data/bank.db"]\n', "").replace(
        "/data/bank.db", "/opt/bank.db"
    )

    async def test():
        async with world(tmp_path, text) as bank:
            assert await bank.environment.query() == EnvState()
            with pytest.raises(RuntimeError, match="stateless"):
                await bank.environment.snapshot()
            await bank.environment.reset()
            assert await bank.call("/") == {"a": 60, "b": 40}

    run(test)


@pytest.mark.parametrize("check", environment_checks(), ids=str)
def test_it_keeps_the_promises_of_an_environment(tmp_path: Path, check: EnvironmentCheck):
    # In a test of the kit, the service's program comes with the image.
    image = tmp_path / "images" / "bank" / "rootfs" / "opt"
    image.mkdir(parents=True)
    (image / "bank.py").write_text(SERVICE)
    manifest = tmp_path / "environment.toml"
    manifest.write_text(ONE.replace('"host"', '"bank"'))
    amounts = iter(range(1, 50))

    async def mutate(box: Sandbox) -> None:
        url = f"http://127.0.0.1:9001/{next(amounts)}"
        assert (await box.exec(["curl", "-sS", "-X", "POST", url], timeout=30)).ok

    async def test():
        async with LocalProvider(store=tmp_path / "store") as provider:
            make = manifest_environment(manifest)
            (result,) = await check_environment(make, provider, mutate, only=[str(check)])
            result.raise_if_failed()
            # What the machine cannot do is said by the provider's own tests.
            assert result.status == "passed" or "live" in str(check)

    run(test)
