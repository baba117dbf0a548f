# What is left behind is looked for on the spot.
# ruff: noqa: ASYNC240, PT012

import asyncio
import os
from pathlib import Path

import pytest
from benchflow_contracts import RolloutIdentity
from benchflow_contracts.bundle import Bundle
from benchflow_contracts.errors import (
    SandboxError,
    SandboxUnsupportedError,
    UsageError,
)
from benchflow_contracts.limits import ResourceLimits
from benchflow_contracts.sandbox import Sandbox, SandboxProvider, SandboxSpec
from benchflow_contracts.sandbox_record import ReapPolicy
from benchflow_sandbox_local import LocalProvider, LocalSandbox

PREFIX = f"benchflow-test{os.getpid()}-"


@pytest.fixture(autouse=True)
def groups_of_this_run(monkeypatch):
    """Other runs make groups on this machine at the same time."""
    monkeypatch.setattr("benchflow_sandbox_local.manager.GROUP_PREFIX", PREFIX)


def footprint(store):
    """Count what a sandbox takes on the host: descriptors, control groups, mounts."""
    return (
        len(list(Path("/proc/self/fd").iterdir())),
        # `Path.glob` fails if another run removes a group at this moment.
        sum(path.rpartition("/")[2].startswith(PREFIX) for path, _, _ in os.walk("/sys/fs/cgroup")),
        len(mounts(store)),
    )


def mounts(store, process="self"):
    """Return what is mounted in a store. Others mount and unmount their own meanwhile."""
    lines = Path(f"/proc/{process}/mountinfo").read_text().splitlines()
    return [line for line in lines if str(store) in line]


def test_it_is_what_the_contract_asks_for(with_provider):
    async def check(provider: LocalProvider):
        contract: SandboxProvider = provider
        assert contract.name == "local"
        sandbox = await contract.create(SandboxSpec(), identity=RolloutIdentity(other={"a": "b"}))
        assert isinstance(sandbox, Sandbox)
        assert isinstance(sandbox, LocalSandbox)
        (record,) = [record async for record in contract.sandboxes()]
        assert (record.id, record.owner_alive, record.identity.other) == (
            sandbox.id,
            True,
            {"a": "b"},
        )

    with_provider(check)


@pytest.mark.usefixtures("criu")
def test_every_capability_is_found_on_a_machine_that_has_it(with_provider):
    async def check(provider):
        found = await provider.capabilities()
        assert found.isolation == "namespaces"
        assert found.snapshot_levels == {"filesystem", "live"}
        assert found.live_engine == "criu"
        assert found.network_modes == {"none", "model-only", "allowlist"}
        assert found.builds
        assert found.resource_limits >= {"disk", "output"}
        assert found.users
        assert found.freeze == "kernel"
        assert found.snapshot_consistency == "instant"
        assert "live" not in found.notes
        assert await provider.capabilities() is found
        assert [record async for record in provider.sandboxes()] == []

    with_provider(check)


def test_those_who_ask_for_capabilities_at_one_time_wait_for_one_probe(with_provider):
    async def check(provider: LocalProvider):
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(provider.capabilities()) for _ in range(2)]
        assert asked[0].result() is asked[1].result()

    with_provider(check)


def test_two_hundred_lives_leave_nothing(with_provider, store):
    async def check(provider):
        await (await provider.create(SandboxSpec())).teardown()
        before = footprint(store)
        for number in range(50):
            async with asyncio.TaskGroup() as group:
                making = [group.create_task(provider.create(SandboxSpec())) for _ in range(4)]
            boxes = [task.result() for task in making]
            if number == 0:
                assert footprint(store)[1] > before[1]
            if number % 10 == 0:
                image = await boxes[0].snapshot()
                await boxes[1].restore(image)
                await provider.discard(image)
            async with asyncio.TaskGroup() as group:
                for box in boxes:
                    group.create_task(box.teardown())
        assert footprint(store) == before
        launcher = provider._launcher.pid
        inside = mounts(store, launcher)
        assert inside
        assert not [line for line in inside if " overlay " in line or "/f-bf-" in line]
        assert len(list(Path(f"/proc/{launcher}/fd").iterdir())) < 12
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text()
        assert children == ""

    with_provider(check)


def test_closing_tears_everything_down(store):
    if os.geteuid() != 0:
        pytest.skip("sandboxes with users need root")
    before = footprint(store)

    async def main():
        provider = LocalProvider(store=store)
        for _ in range(3):
            await provider.create(SandboxSpec())
        launcher = provider._launcher.pid
        await provider.aclose()
        await provider.aclose()
        assert not Path(f"/proc/{launcher}").exists()
        with pytest.raises(SandboxError, match="closed"):
            await provider.create(SandboxSpec())

    asyncio.run(main())
    assert footprint(store)[1:] == before[1:]
    assert list((store / "boxes").iterdir()) == []


def test_a_start_that_fails_or_is_cancelled_leaves_nothing(with_provider, store):
    async def check(provider):
        await (await provider.create(SandboxSpec())).teardown()
        before = footprint(store)
        with pytest.raises(SandboxError, match="nowhere"):
            await provider.create(
                SandboxSpec(bundles=(Bundle(source="/nowhere", target="/x", key="k"),))
            )
        with pytest.raises(SandboxError, match="absent"):
            await provider.create(SandboxSpec(entrypoint=("absent",)))
        for delay in (0, 0.001, 0.002, 0.004, 0.006):
            ready = []
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(delay):
                    ready.append(await provider.create(SandboxSpec()))
                    await asyncio.sleep(10)
            # One that was ready before the cancellation belongs to its caller.
            for sandbox in ready:
                await sandbox.teardown()
        assert footprint(store) == before
        assert [record async for record in provider.sandboxes()] == []

    with_provider(check)


def test_a_launcher_that_dies_is_an_error_and_teardown_still_cleans(with_provider, store):
    async def check(provider):
        sandbox = await provider.create(SandboxSpec())
        os.kill(provider._launcher.pid, 9)
        with pytest.raises(SandboxError):
            await provider.create(SandboxSpec())
        await sandbox.running.ended()
        with pytest.raises(SandboxError):
            await sandbox.exec("true")
        await sandbox.teardown()
        assert not any(Path(path).exists() for path in sandbox.group.paths)
        assert list((store / "boxes").iterdir()) == []

    with_provider(check)


def test_looking_makes_nothing(store):
    async def look():
        provider = LocalProvider(store=store)
        assert [record async for record in provider.sandboxes()] == []
        assert await provider.reap(ReapPolicy()) == []
        await provider.aclose()

    asyncio.run(look())
    assert not store.exists()


def test_an_unknown_image_names_where_it_was_looked_for(with_provider, tmp_path):
    async def check(provider):
        with pytest.raises(SandboxUnsupportedError, match="no-such-image"):
            await provider.create(
                SandboxSpec(image="no-such-image:1", image_search=(str(tmp_path),))
            )

    with_provider(check)


def test_the_disk_limit_is_too_small_to_start(with_provider):
    async def check(provider):
        sandbox = await provider.create(SandboxSpec(limits=ResourceLimits(disk_mb=1)))
        assert (await sandbox.exec("head -c 2000000 /dev/zero > f")).exit_code != 0

    with_provider(check)


def test_a_relative_workdir_is_refused(with_provider):
    async def check(provider):
        with pytest.raises(UsageError, match="relative"):
            await provider.create(SandboxSpec(workdir="relative"))

    with_provider(check)
