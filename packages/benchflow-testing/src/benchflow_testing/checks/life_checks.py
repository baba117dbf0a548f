"""Checks of a sandbox from creation to teardown: records, network and limits."""

import asyncio
import math
import time
from contextlib import suppress
from uuid import uuid4

from benchflow_contracts import RolloutIdentity
from benchflow_contracts.door import Endpoint
from benchflow_contracts.errors import SandboxError, SandboxLimitError, SandboxUnsupportedError
from benchflow_contracts.limits import ResourceKind
from benchflow_contracts.process import ByteReader
from benchflow_contracts.sandbox import NetworkMode, Sandbox
from benchflow_contracts.sandbox_record import ReapPolicy, SandboxRecord

from benchflow_testing.check import (
    CheckSkippedError,
    expect,
    expect_equal,
    expect_error,
    promise,
)
from benchflow_testing.sandbox_subject import (
    TICKER,
    SandboxCheck,
    SandboxSubject,
    free_port,
    lacks_network,
    lacks_spawn,
    routes,
    until,
)

_MODES: tuple[NetworkMode, ...] = ("none", "model-only", "allowlist", "public")
_SERVER = """
import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("ready", flush=True)
while True:
    client, _ = server.accept()
    client.sendall(b"pong")
    client.close()
"""


def _lacks_no_network(subject: SandboxSubject) -> str | None:
    return lacks_network(subject, "none")


def _has_all_modes(subject: SandboxSubject) -> str | None:
    known = subject.capabilities.network_modes
    return "every network mode is supported" if known.issuperset(_MODES) else None


def _without(subject: SandboxSubject, kind: ResourceKind) -> str | None:
    known = kind in subject.capabilities.resource_limits
    return None if known else f"capabilities: no {kind} limit"


def _lacks_pids_limit(subject: SandboxSubject) -> str | None:
    return _without(subject, "pids")


def _lacks_memory_limit(subject: SandboxSubject) -> str | None:
    return _without(subject, "memory")


def _lacks_disk_limit(subject: SandboxSubject) -> str | None:
    return _without(subject, "disk")


async def _records(subject: SandboxSubject, key: str) -> list[SandboxRecord]:
    return [each async for each in subject.provider.sandboxes(scope=key)]


@promise()
async def the_provider_is_ready(subject: SandboxSubject) -> None:
    """`ready()` does not raise an error where `create` works. It may be called again."""
    await _still_works(subject)
    await subject.provider.ready()
    await subject.provider.ready()
    await _still_works(subject)


@promise()
async def each_sandbox_has_its_own_id_and_spec(subject: SandboxSubject) -> None:
    """Each sandbox has a different id, and `spec` is the requested spec."""
    spec = subject.spec_with(env={"A": "1"})
    async with subject.open_sandbox(spec=spec) as first, subject.open_sandbox() as second:
        expect(first.id != second.id, "two sandboxes have the same id")
        expect_equal(first.spec, spec, "the spec")
        await subject.put(first, "file", b"first")
        found = await second.exec("test -e file")
        expect(found.exit_code != 0, "one sandbox sees the other's file")


@promise()
async def records_have_the_identity(subject: SandboxSubject) -> None:
    """`sandboxes()` lists a live sandbox with its identity, and drops it after teardown."""
    key = uuid4().hex
    identity = RolloutIdentity(
        scope=key,
        slot="a task#0",
        attempt=2,
        rollout="r 1",
        node="n0",
        purpose="grading",
        deadline=math.ceil(time.time()) + 3600,
        other={"kit": "k=1"},
    )
    async with subject.open_sandbox(identity=identity) as sandbox:
        found = await _records(subject, key)
        expect_equal([record.id for record in found], [sandbox.id], "the listed sandboxes")
        record = found[0]
        expect_equal(record.identity, identity, "the identity")
        expect_equal(record.provider, subject.provider.name, "the provider")
        expect(record.owner_alive, "the record of a live sandbox has a dead owner")
    expect_equal(await _records(subject, key), [], "the list after teardown")


@promise()
async def a_scope_lists_only_its_sandboxes(subject: SandboxSubject) -> None:
    """`sandboxes(scope=...)` does not list sandboxes of other scopes or without a scope."""
    key, other = uuid4().hex, uuid4().hex
    async with (
        subject.open_sandbox(identity=RolloutIdentity(scope=key)) as mine,
        subject.open_sandbox(identity=RolloutIdentity(scope=other)) as foreign,
        subject.open_sandbox() as plain,
    ):
        expect_equal([each.id for each in await _records(subject, key)], [mine.id], "one scope")
        found = {each.id async for each in subject.provider.sandboxes()}
        expect({mine.id, foreign.id, plain.id} <= found, "the list of all scopes is incomplete")


@promise()
async def teardown_may_be_repeated(subject: SandboxSubject) -> None:
    """A second teardown does nothing; every other call raises SandboxError."""
    async with subject.open_sandbox() as sandbox:
        await sandbox.teardown()
        await sandbox.teardown()
        await expect_error(SandboxError, sandbox.exec("true"), "exec after teardown")
        if subject.capabilities.spawn:
            await expect_error(SandboxError, sandbox.spawn("true"), "spawn after teardown")


@promise()
async def teardown_ends_running_processes(subject: SandboxSubject) -> None:
    """A running process ends. An `exec` in flight returns or raises; it does not hang."""

    async def run() -> None:
        try:
            await sandbox.exec(TICKER)
        except SandboxError:
            return

    async with subject.open_sandbox() as sandbox:
        process = await sandbox.spawn(["cat"]) if subject.capabilities.spawn else None
        async with asyncio.TaskGroup() as group:
            group.create_task(run())
            await subject.wait_for_tick(sandbox)
            await sandbox.teardown()
        if process is None:
            return
        expect(await process.wait() != 0, "the process ended with exit code 0")
        expect_equal(await process.stdout.read(), b"", "its stdout")
        await process.aclose()


@promise()
async def reap_leaves_live_sandboxes_alone(subject: SandboxSubject) -> None:
    """A sandbox with a live owner is not reaped, not even past its deadline."""
    key = uuid4().hex
    async with subject.open_sandbox(identity=RolloutIdentity(scope=key, deadline=1)) as sandbox:
        for policy in (
            ReapPolicy(scope=key),
            ReapPolicy(scope=key, dry_run=True),
            ReapPolicy(scope=uuid4().hex),
        ):
            reaped = await subject.provider.reap(policy)
            expect(sandbox.id not in {record.id for record in reaped}, "a live sandbox was reaped")
        expect_equal(await subject.output(sandbox, "echo on"), "on\n", "the next command")
        expect_equal(len(await _records(subject, key)), 1, "the number of records")


@promise()
async def overdue_sandboxes_are_reaped_on_request(subject: SandboxSubject) -> None:
    """With `overdue`, sandboxes past their deadline are removed, and no others."""
    key = uuid4().hex
    soon = math.ceil(time.time()) + 3600
    policy = ReapPolicy(scope=key, overdue=True)
    async with (
        subject.open_sandbox(identity=RolloutIdentity(scope=key, deadline=1)) as late,
        subject.open_sandbox(identity=RolloutIdentity(scope=key, deadline=soon)) as early,
    ):
        try:
            reaped = await subject.provider.reap(policy)
        except SandboxUnsupportedError as error:
            expect_equal(len(await _records(subject, key)), 2, "the number of records")
            raise CheckSkippedError(
                "not claimed: sandboxes of live owners are not reaped"
            ) from error
        expect_equal([record.id for record in reaped], [late.id], "the reaped sandboxes")
        await expect_error(SandboxError, late.exec("true"), "exec in a reaped sandbox")
        expect_equal(await subject.output(early, "echo on"), "on\n", "the next command")


@promise(_has_all_modes)
async def an_unsupported_network_is_refused(subject: SandboxSubject) -> None:
    """A network mode that `capabilities` does not list is refused; no weaker mode is used."""
    for mode in _MODES:
        if mode not in subject.capabilities.network_modes:
            call = subject.provider.create(subject.spec_with(network=mode))
            await expect_error(SandboxUnsupportedError, call, f"network {mode!r}")


@promise(_lacks_no_network)
async def network_none_has_no_route(subject: SandboxSubject) -> None:
    """With `network="none"`, the only route leads to loopback."""
    async with subject.open_sandbox(spec=subject.spec_with(network="none")) as sandbox:
        table = await sandbox.exec("cat /proc/net/route")
        if not table.ok:
            raise CheckSkippedError(
                "the sandbox does not have /proc/net/route, which the check reads"
            )
        expect_equal(routes(table.stdout) - {"lo"}, set[str](), "the devices with a route")


@promise(lacks_spawn)
async def an_exposed_port_reaches_the_server_inside(subject: SandboxSubject) -> None:
    """The endpoint answers on the host's loopback while the sandbox lives."""
    port = free_port()
    try:
        async with subject.open_sandbox(spec=subject.spec_with(ports=(port,))) as sandbox:
            await _port_answers(sandbox, port)
    except SandboxUnsupportedError as error:
        raise CheckSkippedError(f"not claimed: {error}") from error


async def _port_answers(sandbox: Sandbox, port: int) -> None:
    if not (await sandbox.exec("command -v python3")).ok:
        raise CheckSkippedError("the sandbox does not have python3, which the check runs")
    process = await sandbox.spawn(["python3", "-I", "-c", _SERVER, str(port)])
    expect_equal(await _read_line(process.stdout), b"ready\n", "the server's first line")
    endpoint = await sandbox.expose_port(port)
    again = await sandbox.expose_port(port)
    for _ in range(2):
        expect_equal(await _ask(endpoint), b"pong", "the answer")
    expect_equal(await _ask(again), b"pong", "the answer at a second endpoint")
    await process.aclose()


async def _read_line(reader: ByteReader) -> bytes:
    line = b""
    while not line.endswith(b"\n") and (piece := await reader.read(1)):
        line += piece
    return line


async def _ask(endpoint: Endpoint) -> bytes:
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    try:
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


@promise(_lacks_pids_limit)
async def the_process_cap_holds(subject: SandboxSubject) -> None:
    """More processes than `limits.pids` cannot be started. The sandbox stays usable."""
    spec = subject.spec_with(limits={"pids": 32})
    text = (
        "n=x; while [ $n != xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx ]; do sleep 60 & n=x$n; done"
    )
    async with subject.open_sandbox(spec=spec) as sandbox:
        result = await sandbox.exec(["sh", "-c", f"({text}) && echo all"])
        expect("all" not in result.stdout, "40 processes started under a limit of 32")
    await _still_works(subject)


@promise(_lacks_memory_limit)
async def the_memory_cap_holds(subject: SandboxSubject) -> None:
    """A process that takes more than `limits.memory_mb` does not succeed.

    It fails, is killed, or `exec` raises SandboxLimitError.
    """
    spec = subject.spec_with(limits={"memory_mb": 64})
    async with subject.open_sandbox(spec=spec) as sandbox:
        command = ["dd", "if=/dev/zero", "of=/dev/null", "bs=268435456", "count=1"]
        with suppress(SandboxLimitError):
            result = await sandbox.exec(command)
            expect(not result.ok, "a process got 256 MB under a limit of 64 MB")
    await _still_works(subject)


@promise(_lacks_disk_limit)
async def the_disk_cap_holds(subject: SandboxSubject) -> None:
    """Writing more than `limits.disk_mb` fails inside. The sandbox stays usable."""
    spec = subject.spec_with(limits={"disk_mb": 32})
    async with subject.open_sandbox(spec=spec) as sandbox:
        written = await sandbox.exec(["dd", "if=/dev/zero", "of=big", "bs=1048576", "count=96"])
        expect(not written.ok, "96 MB were written under a limit of 32 MB")
        expect_equal(
            await subject.output(sandbox, "rm -f big; echo on"), "on\n", "the next command"
        )


async def _still_works(subject: SandboxSubject) -> None:
    async with subject.open_sandbox() as sandbox:
        expect_equal(await subject.output(sandbox, "echo on"), "on\n", "another sandbox")


@promise()
async def closing_the_provider_leaves_no_sandbox(subject: SandboxSubject) -> None:
    """`aclose` tears down all sandboxes and may be repeated. This check must run last."""
    key = uuid4().hex
    sandboxes = [
        await subject.provider.create(subject.spec, identity=RolloutIdentity(scope=key))
        for _ in range(2)
    ]
    process = await sandboxes[0].spawn(["cat"]) if subject.capabilities.spawn else None
    await subject.provider.aclose()
    await subject.provider.aclose()

    async def gone() -> bool:
        return not await _records(subject, key)

    await until(gone, "a sandbox outlives its provider")
    if process is not None:
        expect(await process.wait() != 0, "a process outlives its provider")
    for sandbox in sandboxes:
        await expect_error(SandboxError, sandbox.exec("true"), "exec after the provider closed")
        await sandbox.teardown()


LIFE_CHECKS: tuple[SandboxCheck, ...] = (
    the_provider_is_ready,
    each_sandbox_has_its_own_id_and_spec,
    records_have_the_identity,
    a_scope_lists_only_its_sandboxes,
    teardown_may_be_repeated,
    teardown_ends_running_processes,
    reap_leaves_live_sandboxes_alone,
    overdue_sandboxes_are_reaped_on_request,
    an_unsupported_network_is_refused,
    network_none_has_no_route,
    an_exposed_port_reaches_the_server_inside,
    the_process_cap_holds,
    the_memory_cap_holds,
    the_disk_cap_holds,
    closing_the_provider_leaves_no_sandbox,
)
