"""Sandboxes on another host, by a real ssh and sshd. The host is this machine."""

import asyncio
import sys
from dataclasses import replace

import pytest
from benchflow_contracts.errors import (
    CredentialsError,
    HostError,
    SandboxError,
    SandboxLostError,
    SandboxUnsupportedError,
    UsageError,
)
from benchflow_contracts.identity import RolloutIdentity
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_remote import SshProvider
from benchflow_sandbox_remote.ssh.cloud import RemoteHost
from benchflow_testing import check_sandbox
from benchflow_testing_clouds.sshd import HOST, ssh_command

SPEC = SandboxSpec()


@pytest.fixture
def host(tmp_path):
    """Return another host, whose server ends after two seconds without work."""
    for name in ("ssh", "state"):
        (tmp_path / name).mkdir()
    variables = f"BENCHFLOW_REMOTE_STATE={tmp_path}/state BENCHFLOW_REMOTE_IDLE=2"
    python = f"env {variables} {sys.executable}"
    return RemoteHost(name=HOST, python=python, ssh=ssh_command(tmp_path / "ssh"))


@pytest.fixture
def with_host(host):
    """Run an async test against a provider of its own."""

    def run(test, host=host, **options):
        async def main():
            async with SshProvider(host=host, **options) as provider:
                return await test(provider)

        return asyncio.run(main())

    return run


def test_a_sandbox_of_another_host_has_streams_users_labels_and_lists(with_host, tmp_path):
    async def test(provider):
        await provider.ready()
        sandbox = await provider.create(SPEC, identity=RolloutIdentity(scope="job", task="a/b ü"))
        result = await sandbox.exec("cat; echo bad >&2; id -un; exit 3", stdin="ä\n".encode())
        assert (result.stdout, result.stderr, result.exit_code) == ("ä\nagent\n", "bad\n", 3)
        (tmp_path / "file").write_bytes(bytes(range(256)) * 4000)
        await sandbox.upload(tmp_path / "file", "/workspace/file")
        await sandbox.download("/workspace/file", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == (tmp_path / "file").read_bytes()
        (record,) = [each async for each in provider.sandboxes(scope="job")]
        assert (record.id, record.identity.task) == (sandbox.id, "a/b ü")
        await sandbox.teardown()
        assert [each async for each in provider.sandboxes()] == []

    with_host(test)


def test_a_killed_ssh_loses_no_byte(with_host, monkeypatch):
    connections = []
    numbers = b"".join(b"%d\n" % number for number in range(1, 40_001))

    async def test(provider):
        connect = provider._cloud.connect

        async def noted():
            connections.append(await connect())
            return connections[-1]

        monkeypatch.setattr(provider._cloud, "connect", noted)
        sandbox = await provider.create(SPEC)
        process = await sandbox.spawn("seq 1 40000")
        data = bytearray()
        while piece := await process.stdout.read(4096):
            if len(data) % 3 == 0:
                await connections[-1].aclose()
            data += piece
        assert bytes(data) == numbers
        # What was cut off may have arrived before: a command needs a new connection.
        assert (await sandbox.exec("true")).ok
        assert sandbox.connections > 1

    with_host(test)


def test_a_connection_that_is_closed_during_a_request_is_a_fault_of_the_host(with_host):
    async def test(provider):
        connection = await provider._cloud.connect()

        async def ask():
            # The link tries again after this error, and ends after one that it does not know.
            with pytest.raises(HostError):
                await connection.ask({"call": "list", "label": "benchflow.owner"})

        async with asyncio.TaskGroup() as group:
            group.create_task(ask())
            await asyncio.sleep(0)
            await connection.aclose()

    with_host(test)


def test_a_lost_answer_leaves_one_sandbox_and_a_killed_runner_none(with_host):
    async def test(provider):
        made = [
            await provider._cloud.create(SPEC, key="k", labels={"benchflow.owner": "x"}, lifetime=9)
            for _ in range(2)
        ]
        assert made[0].id == made[1].id
        assert len([each async for each in provider.sandboxes()]) == 1
        async with asyncio.timeout(30):
            while [each async for each in provider.sandboxes()]:
                continue  # each list is a call to the host
        with pytest.raises(SandboxLostError, match="its time is over"):
            await made[0].dial()

    with_host(test)


def test_a_refused_key_and_a_host_without_benchflow_end_a_job_before_it_begins(
    with_host, host, tmp_path, monkeypatch
):
    async def without_benchflow(provider):
        with pytest.raises(SandboxUnsupportedError, match="No module named") as error:
            await provider.ready()
        assert "BENCHFLOW_REMOTE_PYTHON" in error.value.hint

    state = host.python.removesuffix(sys.executable)
    other = f"{state}{sys.base_prefix}/bin/python3"  # not that of the tests' environment
    with_host(without_benchflow, host=replace(host, python=other))

    async def refused(provider):
        with pytest.raises(CredentialsError, match="Permission denied"):
            await provider.ready()

    async def without_provider(provider):
        with pytest.raises(SandboxUnsupportedError, match="no sandbox provider 'locla'") as error:
            await provider.ready()
        assert "BENCHFLOW_REMOTE_PROVIDER" in error.value.hint

    with_host(without_provider, host=replace(host, provider="locla"))

    (tmp_path / "ssh/authorized_keys").write_text("")
    with_host(refused)


def test_the_host_is_named_by_the_variable_or_by_the_option(monkeypatch):
    monkeypatch.delenv("BENCHFLOW_REMOTE_HOST", raising=False)
    with pytest.raises(UsageError) as error:
        SshProvider()
    assert "--sandbox-host user@host" in error.value.hint
    monkeypatch.setenv("BENCHFLOW_REMOTE_HOST", "other")
    assert SshProvider()._host.name == "other"
    for name in ("me@host", "alias-1", "ssh://me@host:2222", "me@[::1]", "10.0.0.7"):
        assert SshProvider(host=name)._host.name == name
    monkeypatch.setenv("BENCHFLOW_REMOTE_SSH", 'ssh "')
    with pytest.raises(UsageError, match="BENCHFLOW_REMOTE_SSH"):
        SshProvider()


@pytest.mark.parametrize(
    "name", ["-oProxyCommand=id", "me@-oX", "a b", "a;id", "$(id)", "a\n", "ä"]
)
def test_a_host_that_ssh_or_a_shell_could_read_as_something_else_is_refused(name):
    with pytest.raises(UsageError, match="is not a host"):
        SshProvider(host=name)


def test_another_provider_cannot_be_a_path_on_the_host(monkeypatch):
    monkeypatch.setenv("BENCHFLOW_REMOTE_PROVIDER", "../local")
    with pytest.raises(UsageError, match="is not a provider"):
        SshProvider(host="other")


def test_the_host_refuses_what_it_does_not_know(with_host):
    async def test(provider):
        for request in ({"call": "format"}, {"call": "delete"}, {"call": "run", "id": "a", "x": 1}):
            with pytest.raises(UsageError):
                await provider._cloud.ask(request)
        spec = {"image": None, "services": []}
        request = {"call": "create", "key": "k", "labels": {}, "lifetime": 1, "spec": spec}
        with pytest.raises(SandboxUnsupportedError, match="services"):
            await provider._cloud.ask(request)

    with_host(test)


ANSWERS = [
    b"",
    b"[" * 5000 + b"\n",
    b"not json\n",
    b"[1]\n",
    b'{"ok": 7}\n',
    b'{"ok": [{"id": 1, "labels": 2}]}\n',
    b'{"error": "HostError", "message": {"a": 1}}\n',
    b"x" * (1 << 20) + b"\n",
]


@pytest.mark.parametrize("answer", ANSWERS, ids=range(len(ANSWERS)))
def test_answers_of_a_host_that_is_not_ours_are_errors_of_the_host(with_host, tmp_path, answer):
    (tmp_path / "answer").write_bytes(answer)
    (tmp_path / "ssh.sh").write_text(f"#!/bin/sh\nread request\ncat {tmp_path}/answer\n")
    (tmp_path / "ssh.sh").chmod(0o755)

    async def test(provider):
        with pytest.raises(SandboxError):
            await provider.ready()
        with pytest.raises(SandboxError):
            assert [each async for each in provider.sandboxes()] == []

    with_host(test, host=RemoteHost(name=HOST, ssh=(f"{tmp_path}/ssh.sh",)))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_sandbox_of_another_host_keeps_every_promise_of_the_contract(with_host):
    async def test(provider):
        return await check_sandbox(provider, at_once=4)

    results = with_host(test)
    assert {r.name: r.reason for r in results if r.status == "failed"} == {}
    assert [r for r in results if r.status == "passed"]
