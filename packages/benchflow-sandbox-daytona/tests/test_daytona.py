"""Daytona's SDK against our server: faults of the account, of the connection and of the runner."""

import asyncio
import time

import daytona
import pytest
from benchflow_contracts.errors import (
    CapacityError,
    CredentialsError,
    HostError,
    QuotaError,
    SandboxError,
    SandboxLostError,
    SandboxUnsupportedError,
)
from benchflow_contracts.identity import RolloutIdentity
from benchflow_contracts.limits import ResourceLimits
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_daytona import DaytonaProvider, DaytonaVmProvider
from benchflow_sandbox_daytona.errors import typed_errors
from benchflow_testing_clouds import daytona as server_module

SPEC = SandboxSpec()
IMAGE = "python:3.12"


@pytest.mark.parametrize("previews", [True, False], ids=["preview URL", "session"])
def test_a_command_has_separate_outputs_an_exit_code_and_the_agents_user(with_provider, previews):
    async def test(provider, server):
        sandbox = await provider.create(SPEC)
        result = await sandbox.exec("cat; echo bad >&2; id -un; exit 3", stdin="ä\n".encode())
        assert (result.stdout, result.stderr, result.exit_code) == ("ä\nagent\n", "bad\n", 3)
        # The link uses text only if the ports cannot be reached.
        assert server.made[sandbox.id].toolbox.sessions_created == (0 if previews else 1)

    with_provider(test, account={"previews": previews})


def test_only_the_lifetime_ends_a_sandbox_and_its_labels_are_those_of_the_rollout(with_provider):
    async def test(provider, server):
        sandbox = await provider.create(SPEC, identity=RolloutIdentity(scope="job", task="a/b ü"))
        (record,) = [each async for each in provider.sandboxes(scope="job")]
        assert (record.id, record.identity.task) == (sandbox.id, "a/b ü")
        assert record.identity.other == {}
        given = server.made[sandbox.id].given
        assert given["labels"]["benchflow.scope"] == "job"
        assert [given[f"auto{kind}Interval"] for kind in ("Stop", "Pause", "Delete")] == [0, 0, 0]
        left = server.made[sandbox.id].ends.timestamp() - time.time()
        assert 240 < left <= 300
        await sandbox.teardown()
        assert server.made == {}

    with_provider(test)


@pytest.mark.parametrize(
    ("network", "is_blocked"),
    [("none", True), ("model-only", True), ("allowlist", True), ("public", False)],
)
def test_daytona_blocks_every_network_that_the_link_serves(with_provider, network, is_blocked):
    async def test(provider, server):
        sandbox = await provider.create(SandboxSpec(network=network))
        assert server.made[sandbox.id].given["networkBlockAll"] is is_blocked

    with_provider(test)


def test_an_image_is_pulled_with_the_size_of_the_limits_and_a_snapshot_has_its_own(with_provider):
    limits = ResourceLimits(cpus=1.5, memory_mb=1500, disk_mb=5000)

    async def test(provider, server):
        sandbox = await provider.create(SandboxSpec(image=IMAGE, limits=limits))
        given = server.made[sandbox.id].given
        assert [given[kind] for kind in ("cpu", "memory", "disk")] == [2, 2, 5]
        assert given["buildInfo"]["dockerfileContent"] == f"FROM {IMAGE}\n"
        sandbox = await provider.create(SandboxSpec(image="snapshot://mine", limits=limits))
        given = server.made[sandbox.id].given
        assert (given["snapshot"], given.keys() & {"cpu", "memory", "disk"}) == ("mine", set())

    with_provider(test, account={"images": {IMAGE: SPEC}, "snapshots": {"mine": SPEC}})


@pytest.mark.parametrize("image", ["no-such-image", "snapshot://no-such-snapshot"])
def test_an_image_or_a_snapshot_that_does_not_exist_is_refused(with_provider, image):
    async def test(provider, server):
        with pytest.raises(SandboxUnsupportedError, match="Daytona"):
            await provider.create(SandboxSpec(image=image))
        assert server.made == {}

    with_provider(test)


@pytest.mark.parametrize("kind", ["image", "snapshot"])
def test_an_answer_that_is_lost_leaves_one_sandbox(with_provider, kind):
    async def test(provider, server):
        server.failures = [(502, {}, True)]
        sandbox = await provider.create(SandboxSpec(image=IMAGE if kind == "image" else None))
        assert (await sandbox.exec("echo here")).stdout == "here\n"
        assert server.creations == 1
        assert list(server.made) == [sandbox.id]

    with_provider(test, account={"images": {IMAGE: SPEC}})


def test_a_storm_of_429_waits_as_long_as_its_header_says(with_provider):
    async def test(provider, server):
        server.failures = [(429, {"retry-after-sandbox-create": "1"}, False)] * 2
        started = time.monotonic()
        await provider.create(SPEC)
        assert time.monotonic() - started >= 2
        assert server.creations == 1

    with_provider(test)


def test_a_wrong_key_ends_a_job_before_it_begins(with_provider):
    async def test(provider, server):
        for call in (provider.ready(), provider.create(SPEC)):
            with pytest.raises(CredentialsError, match="Daytona") as error:
                await call
            assert "DAYTONA_API_KEY" in error.value.hint
        assert server.creations == 0

    with_provider(test, key="dtn_wrong")


def test_a_missing_key_is_said_before_anything_runs(monkeypatch):
    monkeypatch.delenv("DAYTONA_API_KEY", raising=False)
    with pytest.raises(CredentialsError, match="no credentials"):
        asyncio.run(DaytonaProvider().ready())
    with pytest.raises(CredentialsError, match="no credentials"):
        asyncio.run(DaytonaProvider().create(SPEC))


def test_a_key_that_is_right_is_ready(with_provider):
    async def test(provider, server):
        await provider.ready()
        assert server.creations == 0

    with_provider(test)


def test_a_suspended_organization_stops_the_job_and_a_full_one_waits(with_provider, monkeypatch):
    monkeypatch.setattr("benchflow_sandbox_remote.provider._TRIES", 1)

    async def test(provider, server):
        server.account.suspended = "no credit"
        with pytest.raises(QuotaError, match="no credit") as error:
            await provider.create(SPEC)
        assert error.value.stops_job
        server.account.suspended = ""
        await provider.create(SPEC)
        with pytest.raises(CapacityError, match="Maximum allowed: 1"):
            await provider.create(SPEC)
        assert server.creations == 1

    with_provider(test, account={"max_cpus": 1})


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (daytona.DaytonaError("no permission", status_code=403), CredentialsError),
        (daytona.DaytonaError("bad request", status_code=400), SandboxUnsupportedError),
        (daytona.DaytonaError("bad gateway", status_code=502), HostError),
        (daytona.DaytonaError("s entered error state: SandboxState.ERROR"), HostError),
        (daytona.DaytonaError("no status"), SandboxError),
        (daytona.DaytonaError("gone", status_code=410), SandboxLostError),
        (daytona.DaytonaConnectionTimeoutError("slow"), HostError),
        (daytona.DaytonaQueueTimeoutError("no runner"), CapacityError),
        (daytona.DaytonaSpotEvictedError("evicted"), SandboxLostError),
    ],
)
def test_an_error_of_the_sdk_has_its_type_in_the_contracts(error, kind):
    with pytest.raises(SandboxError) as caught, typed_errors("try"):
        raise error
    assert type(caught.value) is kind


@pytest.mark.parametrize("field", ["autoDestroyAt", "networkBlockAll"])
def test_a_server_that_ignores_a_lifetime_or_a_block_gets_no_sandbox(
    with_provider, monkeypatch, field
):
    described = server_module._described
    monkeypatch.setattr(
        server_module,
        "_described",
        lambda made: {**described(made), field: {"networkBlockAll": False}.get(field)},
    )

    async def test(provider, server):
        with pytest.raises(SandboxUnsupportedError, match="the server"):
            await provider.create(SPEC)
        assert server.made == {}

    with_provider(test)


def test_a_sandbox_that_was_deleted_or_evicted_says_so_also_during_a_command(with_provider):
    async def test(provider, server):
        first, second = await provider.create(SPEC), await provider.create(SPEC)
        await server.remove(first.id)
        with pytest.raises(SandboxLostError, match="deleted"):
            await first.exec("true")
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            group.create_task(is_lost(second.exec("echo > /workspace/waits; sleep 1000")))
            while not (await second.exec("test -e waits")).ok:
                continue
            await server.evict(second.id)

    async def is_lost(call):
        with pytest.raises(SandboxLostError, match="evicted since"):
            await call

    with_provider(test)


@pytest.mark.parametrize("previews", [True, False], ids=["preview URL", "session"])
def test_streams_that_daytona_ends_lose_no_byte(with_provider, previews):
    # The link sends less than this before the runner has read the first 100,000 bytes.
    numbers = b"".join(b"%d\n" % number for number in range(1, 100_001))

    async def test(provider, server):
        sandbox = await provider.create(SPEC)
        made = server.made[sandbox.id]
        process = await sandbox.spawn("seq 1 100000")
        made.toolbox.restarts = 1
        data, next_cut = bytearray(), 100_000
        while piece := await process.stdout.read(4096):
            data += piece
            if len(data) > next_cut:
                next_cut += 100_000
                await made.toolbox.cut()
                made.previews.cut()
        assert bytes(data) == numbers
        assert await process.wait() == 0
        assert sandbox.connections > 1
        assert made.toolbox.restarts == (1 if previews else 0)

    with_provider(test, account={"previews": previews})


def test_a_heartbeat_extends_the_lifetime(with_provider):
    async def test(provider, server):
        sandbox = await provider.create(SPEC)
        ends = server.made[sandbox.id].ends
        async with asyncio.timeout(30):
            while server.made[sandbox.id].ends == ends:
                await sandbox.exec("true")

    with_provider(test, lifetime=1.0)


def test_a_runner_that_is_killed_leaves_no_sandbox_after_its_lifetime(with_provider):
    async def test(provider, server):
        sandbox = await provider.create(SPEC)
        provider._heartbeat.cancel()
        # Only now, because a busy machine takes longer to create a sandbox.
        server.account.minute = 0.3
        await provider._cloud.extend(sandbox.id, 600)
        ends = server.made[sandbox.id].ends.timestamp()
        async with asyncio.timeout(30):
            await server.removed.wait()
        assert server.made == {}
        assert time.time() - ends < 5

    with_provider(test, lifetime=600.0)


VM = {
    "snapshots": {"daytona-vm-small": SPEC, "plain": SPEC},
    "machines": frozenset({"daytona-vm-small"}),
}


def test_a_virtual_machine_comes_from_a_vm_snapshot_or_not_at_all(with_provider):
    async def test(provider, server):
        assert provider.static_capabilities.isolation == "vm"
        for image in (None, "daytona-vm-small"):
            sandbox = await provider.create(SandboxSpec(image=image))
            assert server.made[sandbox.id].sandbox_class == "linux-vm"
            assert (await sandbox.exec("echo here")).stdout == "here\n"
            with pytest.raises(SandboxUnsupportedError):
                await sandbox.snapshot("live")
            await sandbox.teardown()
        with pytest.raises(SandboxUnsupportedError, match="not one of a virtual machine"):
            await provider.create(SandboxSpec(image="plain"))
        assert server.made == {}

    with_provider(test, kind=DaytonaVmProvider, account=VM)
