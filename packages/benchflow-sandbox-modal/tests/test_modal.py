"""Modal's SDK against our server: faults of the account, of the connection and of the runner."""

import asyncio
import time

import pytest
from benchflow_contracts.errors import (
    CapacityError,
    CredentialsError,
    SandboxLostError,
    SandboxUnsupportedError,
    SnapshotError,
)
from benchflow_contracts.identity import RolloutIdentity
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_modal import ModalProvider, cloud, transport
from benchflow_testing_clouds.grpc_service import Refusal
from benchflow_testing_clouds.modal_policy import BLOCKED
from grpclib.const import Status
from modal_proto import api_pb2

SPEC = SandboxSpec()
DAY = 24 * 3600


def test_a_command_has_separate_outputs_an_exit_code_and_the_agents_user(with_provider):
    async def test(provider, server):
        del server
        sandbox = await provider.create(SPEC)
        result = await sandbox.exec("cat; echo bad >&2; id -un; exit 3", stdin="ä\n".encode())
        assert (result.stdout, result.stderr, result.exit_code) == ("ä\nagent\n", "bad\n", 3)

    with_provider(test)


def test_the_labels_of_a_rollout_are_the_tags_of_its_sandbox(with_provider):
    # Longer than a tag of Modal, and of other characters.
    task = "a/b ü" * 40

    async def test(provider, server):
        before = time.time()
        sandbox = await provider.create(SPEC, identity=RolloutIdentity(scope="job", task=task))
        server.made[sandbox.id].tags["of-a-user"] = "x"
        (record,) = [each async for each in provider.sandboxes(scope="job")]
        assert (record.id, record.identity.task) == (sandbox.id, task)
        assert before <= record.created_at <= time.time()
        await sandbox.teardown()
        assert server.made == {}

    with_provider(test)


def test_a_sandbox_gets_the_lifetime_the_network_and_the_limits_of_its_spec(with_provider):
    limits = SPEC.limits.model_copy(update={"cpus": 2.0, "memory_mb": 512})

    async def test(provider, server):
        deadline = round(time.time()) + 600
        identity = RolloutIdentity(deadline=deadline)
        short = await provider.create(SPEC.model_copy(update={"limits": limits}), identity=identity)
        public = await provider.create(SPEC.model_copy(update={"network": "public"}))
        given = server.made[short.id].definition
        assert 600 <= given.timeout_secs - 3600 + 5 <= 610  # an hour for questions and branches
        assert given.idle_timeout_secs == 240  # and 60 s until the link's command ends
        assert given.network_access.network_access_type == BLOCKED
        cores = given.resources.milli_cpu, given.resources.milli_cpu_max
        memory = given.resources.memory_mb, given.resources.memory_mb_max
        assert (cores, memory) == ((1000, 1000), (512, 512))  # a core of Modal is two processors
        given = server.made[public.id].definition
        assert given.timeout_secs == DAY
        assert given.network_access.network_access_type != BLOCKED
        with pytest.raises(SandboxUnsupportedError, match="24 h"):
            await provider.create(SPEC, identity=RolloutIdentity(deadline=deadline + 2 * DAY))

    with_provider(test)


@pytest.mark.parametrize("status", [Status.UNAVAILABLE, Status.RESOURCE_EXHAUSTED])
def test_an_answer_that_is_lost_leaves_one_sandbox(with_provider, status):
    async def test(provider, server):
        server.failures = [(Refusal(status, "lost"), True)]
        await provider.create(SPEC)
        assert server.creations == 1
        assert len(server.made) == 1

    with_provider(test)


def test_the_pause_that_modal_asks_for_is_obeyed(with_provider):
    policy = api_pb2.RPCRetryPolicy(retry_after_secs=0.3)

    async def test(provider, server):
        refusal = Refusal(Status.RESOURCE_EXHAUSTED, "too many", [policy])
        server.failures = [(refusal, False)] * 3
        started = time.monotonic()
        await provider.create(SPEC)
        assert time.monotonic() - started > 0.9
        assert server.creations == 1

    with_provider(test)


def test_a_limit_that_stays_is_a_capacity_error(with_provider):
    async def test(provider, server):
        server.failures = [(Refusal(Status.RESOURCE_EXHAUSTED, "too many"), False)]
        with pytest.raises(CapacityError, match="too many"):
            await provider._cloud.create(SPEC, key="a" * 32, labels={}, lifetime=60)
        assert server.made == {}

    with_provider(test)


def test_a_wrong_token_ends_the_first_call(with_provider):
    async def test(provider, server):
        with pytest.raises(CredentialsError, match="Modal"):
            await provider.ready()
        with pytest.raises(CredentialsError, match="Modal"):
            await provider.create(SPEC)
        assert server.creations == 0

    with_provider(test, secret="as-wrong")


def test_a_missing_token_is_said_before_anything_runs(monkeypatch, tmp_path):
    monkeypatch.setenv("MODAL_CONFIG_PATH", str(tmp_path / "modal.toml"))
    for name in ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(CredentialsError) as error:
        asyncio.run(ModalProvider().ready())
    assert "modal token new" in error.value.hint


def test_an_image_that_modal_cannot_build_is_refused(with_provider):
    async def test(provider, server):
        with pytest.raises(SandboxUnsupportedError, match="no-such-image"):
            await provider.create(SandboxSpec(image="no-such-image"))
        assert server.creations == 0

    with_provider(test)


def test_a_sandbox_that_modal_takes_away_ends_its_command_at_once(with_provider):
    async def test(provider, server):
        sandbox = await provider.create(SPEC)
        process = await sandbox.spawn("cat")
        await process.stdin.write(b"x")
        assert await process.stdout.read(1) == b"x"

        async def run():
            with pytest.raises(SandboxLostError):
                await sandbox.exec("sleep 600")

        async with asyncio.TaskGroup() as group:
            group.create_task(run())
            await asyncio.sleep(0)  # the command is on its way
            started = time.monotonic()
            await server.remove(sandbox.id)
        with pytest.raises(SandboxLostError):
            await sandbox.exec("true")
        assert time.monotonic() - started < 60

    with_provider(test)


def test_a_stream_that_is_cut_continues_at_its_offset(with_provider):
    # More than the pipes and the link hold.
    numbers = b"".join(b"%d\n" % number for number in range(1, 400_001))

    async def read(sandbox, cut):
        process = await sandbox.spawn("seq 1 400000")
        data = bytearray()
        while piece := await process.stdout.read(4096):
            if len(data) % (1 << 19) < 4096:
                await cut()
            data += piece
        assert bytes(data) == numbers

    async def test(provider, server):
        sandbox = await provider.create(SPEC)
        task = server.made[sandbox.id].task

        async def interrupt():
            for command in task.execs.values():
                await command.interrupt(Refusal(Status.UNAVAILABLE, "cut"))

        async def end():
            for command in task.execs.values():
                await command.close()

        await read(sandbox, interrupt)
        assert sandbox.connections == 1  # the SDK reads on
        await read(sandbox, end)
        assert sandbox.connections > 1  # the session dials again

    with_provider(test)


def test_a_runner_that_is_killed_leaves_no_sandbox_after_its_lifetime(with_provider, monkeypatch):
    async def stay_open(self):
        """A runner that is killed does not end the input of its command."""

    monkeypatch.setattr(transport, "SILENCE", 2)

    async def test(provider, server):
        sandbox = await provider.create(SPEC)
        provider._heartbeat.cancel()
        monkeypatch.setattr(transport.ExecTransport, "aclose", stay_open)
        await sandbox._box.session.aclose()
        started = time.monotonic()
        async with asyncio.timeout(30):
            await server.removed.wait()
        assert server.made == {}
        assert time.monotonic() - started < 2 + 3 + 5

    with_provider(test, lifetime=6.0)


def test_a_heartbeat_keeps_a_sandbox_without_a_connection(with_provider):
    async def test(provider, server):
        sandbox = await provider.create(SPEC)
        await sandbox._box.session.aclose()
        await asyncio.sleep(3)
        assert list(server.made) == [sandbox.id]

    with_provider(test, lifetime=2.0)


def test_a_snapshot_has_a_time_to_live_and_is_deleted_with_its_provider(with_provider):
    async def test(provider, server):
        sandbox = await provider.create(SPEC)
        await sandbox.exec("echo then > file")
        image, other = await sandbox.snapshot(), await sandbox.snapshot()
        assert list(server.snapshots) == [image.ref, other.ref]
        await sandbox.exec("echo now > file")
        child = await provider.create(SPEC, image=image)
        assert (await child.exec("cat file")).stdout == "then\n"
        assert (await sandbox.exec("cat file")).stdout == "now\n"
        await provider.discard(image)
        await provider.discard(image)
        assert list(server.snapshots) == [other.ref]
        with pytest.raises(SnapshotError, match="does not have"):
            await provider.create(SPEC, image=image)
        with pytest.raises(SandboxUnsupportedError):
            await sandbox.snapshot("live")
        await provider.aclose()
        assert (server.made, server.snapshots) == ({}, {})

    with_provider(test)


def test_a_snapshot_of_a_killed_runner_ends_after_its_time(with_provider, monkeypatch):
    monkeypatch.setattr(cloud, "_SNAPSHOT_LIFETIME", 1)

    async def test(provider, server):
        sandbox = await provider.create(SPEC)
        image = await sandbox.snapshot()
        provider._images = None  # nobody deletes the snapshot
        async with asyncio.timeout(20):
            while server.snapshots:
                await sandbox.exec("true")
        with pytest.raises(SandboxLostError, match=image.ref):
            await provider._cloud.create_from(image.ref, SPEC, key="k", labels={}, lifetime=60)
        provider._images = sandbox.images

    with_provider(test)


def test_a_snapshot_is_taken_while_no_process_runs(with_provider, monkeypatch):
    async def test(provider, server):
        sandbox = await provider.create(SPEC)
        await sandbox.spawn("while :; do echo x >> ticks; done")
        box, sizes = server.made[sandbox.id].sandbox, []
        take = box.snapshot

        async def slow(level):
            for _ in range(2):
                await asyncio.sleep(0.2)  # a cloud may copy one file after the other
                sizes.append((await box.exec("wc -c < /workspace/ticks", user="root")).stdout)
            return await take(level)

        monkeypatch.setattr(box, "snapshot", slow)
        await sandbox.snapshot()
        assert sizes[0] == sizes[1] != "0\n"
        before = (await sandbox.exec("wc -c < ticks")).stdout
        async with asyncio.timeout(20):
            while (await sandbox.exec("wc -c < ticks")).stdout == before:
                continue

    with_provider(test)
