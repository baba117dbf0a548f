"""Checks of `SupportsNetworkSwitch`: network and user change in a running sandbox."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from benchflow_contracts.errors import SandboxError, SandboxUnsupportedError, UsageError
from benchflow_contracts.network_switch import SupportsNetworkSwitch
from benchflow_contracts.process import Process
from benchflow_contracts.sandbox import NetworkMode, Sandbox, SandboxSpec

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
    lacks_snapshots,
    lacks_users,
    until,
)

_HOST = "127.0.0.2"
"""Of the host itself, and none that programs leave their proxy out for."""
_FILTERED = ("none", "allowlist")
_ASK = """
import sys, urllib.request
print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())
"""
_HOLD = """
import os, socket, sys, urllib.parse
proxy = urllib.parse.urlsplit(os.environ["HTTP_PROXY"])
tunnel = socket.create_connection((proxy.hostname, proxy.port), timeout=30)
tunnel.sendall(f"CONNECT {sys.argv[1]} HTTP/1.1\\r\\n\\r\\n".encode())
print(tunnel.recv(4096).split()[1].decode(), flush=True)
try:
    print("cut" if tunnel.recv(1) == b"" else "alive", flush=True)
except OSError:
    print("cut", flush=True)
"""


def _lacks(subject: SandboxSubject, *modes: NetworkMode) -> str | None:
    if not subject.capabilities.network_switch:
        return "capabilities: no network switch"
    known = subject.capabilities.network_modes
    missing = [mode for mode in modes if mode not in known]
    return f"capabilities: no network mode {', '.join(missing)}" if missing else None


def _lacks_two(subject: SandboxSubject) -> str | None:
    return _lacks(subject, "none", "model-only")


def _lacks_allowlist(subject: SandboxSubject) -> str | None:
    return _lacks(subject, "none", "allowlist")


def _lacks_public(subject: SandboxSubject) -> str | None:
    return _lacks(subject, "none", "public")


def _switched(subject: SandboxSubject, sandbox: Sandbox) -> SupportsNetworkSwitch:
    if isinstance(sandbox, SupportsNetworkSwitch) and subject.capabilities.network_switch:
        return sandbox
    expect(not subject.capabilities.network_switch, "capabilities claim network_switch")
    raise CheckSkippedError("capabilities: no network switch")


@promise(_lacks_two)
async def the_spec_has_the_current_network(subject: SandboxSubject) -> None:
    """`spec` has the network after a switch and after a restore. Processes and user stay."""
    spec = subject.spec_with(network="none", switches=("none", "model-only"))
    async with subject.open_sandbox(spec=spec) as sandbox:
        switched = _switched(subject, sandbox)
        process = await sandbox.spawn(TICKER)
        await subject.wait_for_tick(sandbox)
        await switched.switch_network("model-only")
        expect_equal(sandbox.spec, spec.model_copy(update={"network": "model-only"}), "the spec")
        await subject.wait_for_tick(sandbox)
        await process.aclose()
        await switched.switch_network("none")
        expect_equal(sandbox.spec, spec, "the spec after a second switch")


@promise(_lacks_two)
async def a_network_outside_the_switches_is_refused(subject: SandboxSubject) -> None:
    """A switch to another network, or with hosts but no allowlist, raises an error."""
    async with subject.open_sandbox(spec=subject.spec_with(network="none")) as sandbox:
        switched, before = _switched(subject, sandbox), sandbox.spec
        call = switched.switch_network("model-only")
        await expect_error(SandboxUnsupportedError, call, "a network that was not named")
        call = switched.switch_network("none", ["example.org"])
        await expect_error(UsageError, call, "hosts in a network without any")
        expect_equal(sandbox.spec, before, "the spec")


@promise()
async def an_unsupported_switch_is_refused_at_once(subject: SandboxSubject) -> None:
    """A sandbox with a switch to a network that `capabilities` does not list is not created."""
    for mode in ("none", "model-only", "allowlist", "public"):
        if mode not in subject.capabilities.network_modes:
            call = subject.provider.create(subject.spec_with(switches=(mode,)))
            await expect_error(SandboxUnsupportedError, call, f"a switch to {mode!r}")


@promise(_lacks_allowlist)
async def allowed_hosts_change_with_the_network(subject: SandboxSubject) -> None:
    """A host is reachable exactly while it is allowed."""
    spec = subject.spec_with(network="none", switches=_FILTERED)
    async with subject.open_sandbox(spec=spec) as sandbox, _outside() as port:
        switched = _switched(subject, sandbox)
        await _needs_python(sandbox)
        expect(not await _reaches(sandbox, port), "an outside host is reached in no network")
        await switched.switch_network("allowlist", [_HOST])
        expect(await _reaches(sandbox, port), "an allowed host is not reached")
        await switched.switch_network("allowlist", ["192.0.2.1"])
        expect(not await _reaches(sandbox, port), "a host is reached that is no longer allowed")
        await switched.switch_network("none")
        expect(not await _reaches(sandbox, port), "an outside host is reached in no network")
        await switched.switch_network("allowlist", [_HOST])
        expect(await _reaches(sandbox, port), "a host that is allowed again is not reached")


@promise(_lacks_allowlist)
async def a_switch_closes_forbidden_connections(subject: SandboxSubject) -> None:
    """An open connection ends. It does not continue when its host is allowed again."""
    spec = subject.spec_with(network="allowlist", allowed_hosts=(_HOST,), switches=_FILTERED)
    async with subject.open_sandbox(spec=spec) as sandbox, _outside() as port:
        switched = _switched(subject, sandbox)
        await _needs_python(sandbox)
        process = await sandbox.spawn(["python3", "-I", "-c", _HOLD, f"{_HOST}:{port}"])
        expect_equal(await _line(process), "200", "the answer to a tunnel")
        await switched.switch_network("none")
        await switched.switch_network("allowlist", [_HOST])
        expect_equal(await _line(process), "cut", "a connection that the switch forbade")
        await process.aclose()


@promise(_lacks_public)
async def a_route_exists_only_while_it_is_allowed(subject: SandboxSubject) -> None:
    """`none` has only loopback after every network, and `public` has a route again."""
    spec = subject.spec_with(network="public", switches=("none", "public"))
    try:
        await _routes_follow(subject, spec)
    except SandboxUnsupportedError as error:
        raise CheckSkippedError(f"not claimed: {error}") from error


async def _routes_follow(subject: SandboxSubject, spec: SandboxSpec) -> None:
    async with subject.open_sandbox(spec=spec) as sandbox:
        switched = _switched(subject, sandbox)
        for mode in ("public", "none", "public"):
            await switched.switch_network(mode)
            expect_equal(await _is_routed(sandbox), mode == "public", f"a route in {mode!r}")


@promise(lacks_snapshots)
async def a_restored_sandbox_has_the_current_network(subject: SandboxSubject) -> None:
    """A restore does not bring back the network of the snapshot."""
    if _lacks_two(subject):
        raise CheckSkippedError("capabilities: fewer than two networks")
    spec = subject.spec_with(network="model-only", switches=("none",))
    async with subject.open_sandbox(spec=spec) as sandbox, subject.sealed(sandbox) as image:
        await _switched(subject, sandbox).switch_network("none")
        await sandbox.restore(image)
        expect_equal(sandbox.spec.network, "none", "the network after a restore")


@promise(lacks_users)
async def the_default_user_changes(subject: SandboxSubject) -> None:
    """Commands and processes without a user get the new user, and `spec` has it."""
    async with subject.open_sandbox() as sandbox:
        switched, before = _switched(subject, sandbox), sandbox.spec.user
        for user in ("root", before):
            await switched.switch_user(user)
            expect_equal(sandbox.spec.user, user, "the user in the spec")
            ran_as = await subject.output(sandbox, "id -un")
            expect_equal(ran_as.strip(), user, "who a command ran as that names nobody")


@promise(lacks_users)
async def a_switch_to_an_unknown_user_is_refused(subject: SandboxSubject) -> None:
    """The switch raises an error, creates no user, and does not change the default user."""
    async with subject.open_sandbox() as sandbox:
        switched, before = _switched(subject, sandbox), sandbox.spec
        call = switched.switch_user("nobody-of-this-name")
        await expect_error(SandboxError, call, "a user that is not there")
        expect_equal(sandbox.spec, before, "the spec")


@asynccontextmanager
async def _outside() -> AsyncGenerator[int, None]:
    """Serve `hello` on the host's loopback; yield the port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    listener = socket.create_server((_HOST, 0))
    async with await asyncio.start_server(serve, sock=listener):
        yield int(listener.getsockname()[1])


async def _needs_python(sandbox: Sandbox) -> None:
    if not (await sandbox.exec("command -v python3")).ok:
        raise CheckSkippedError("the sandbox does not have python3, which the check runs")


async def _reaches(sandbox: Sandbox, port: int) -> bool:
    url = f"http://{_HOST}:{port}/"
    # Try with the proxy of the variables, if any, and without.
    asked = await sandbox.exec(["python3", "-I", "-c", _ASK, url])
    return asked.stdout == "hello\n"


async def _is_routed(sandbox: Sandbox) -> bool:
    table = await sandbox.exec("cat /proc/net/route")
    if not table.ok:
        raise CheckSkippedError("the sandbox does not have /proc/net/route, which the check reads")
    used = {line.split()[0] for line in table.stdout.splitlines()[1:] if line.split()}
    return bool(used - {"lo"})


async def _line(process: Process) -> str:
    text = b""

    async def whole() -> bool:
        nonlocal text
        text += await process.stdout.read(64)
        return text.endswith(b"\n")

    await until(whole, "a process inside says nothing")
    return text.decode().strip()


SWITCHED_CHECKS: tuple[SandboxCheck, ...] = (
    the_spec_has_the_current_network,
    a_network_outside_the_switches_is_refused,
    an_unsupported_switch_is_refused_at_once,
    allowed_hosts_change_with_the_network,
    a_switch_closes_forbidden_connections,
    a_route_exists_only_while_it_is_allowed,
    a_restored_sandbox_has_the_current_network,
    the_default_user_changes,
    a_switch_to_an_unknown_user_is_refused,
)
