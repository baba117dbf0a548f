"""Checks of networks: the hosts that a sandbox reaches.

The check serves on the host's loopback. A sandbox reaches this server through a door, or
through the proxy that its variables name.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchflow_contracts.door import Door
from benchflow_contracts.errors import SandboxUnsupportedError, UsageError
from benchflow_contracts.sandbox import NetworkMode, Sandbox

from benchflow_testing.check import (
    CheckSkippedError,
    expect,
    expect_equal,
    expect_error,
    promise,
)
from benchflow_testing.sandbox_subject import (
    SandboxCheck,
    SandboxSubject,
    free_port,
    lacks_network,
    routes,
)

_FETCH = """
import sys, urllib.error, urllib.request
try:
    with urllib.request.urlopen(sys.argv[1], timeout=20) as answer:
        print(answer.read().decode())
except urllib.error.HTTPError as error:
    print("refused with", error.code)
except OSError as error:
    print("no way:", error)
"""
_TO_ITSELF = """
import http.server, threading, urllib.request
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.handle_request, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/"
with urllib.request.urlopen(url, timeout=20) as answer:
    print(answer.status)
"""
_Variables = Mapping[str, str] | None
_UNPROXIED: Mapping[str, str] = dict.fromkeys(
    ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"), ""
)


@dataclass(frozen=True, slots=True)
class _Server:
    """Answers `hello` to every request."""

    host: str
    port: int
    heads: list[str] = field(default_factory=list[str])
    """The heads of the requests."""

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


@asynccontextmanager
async def _serving(host: str) -> AsyncGenerator[_Server]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        await writer.drain()
        writer.close()

    heads = list[str]()
    async with await asyncio.start_server(answer, host, 0) as server:
        yield _Server(host, int(server.sockets[0].getsockname()[1]), heads)


def _lacks_allowlist(subject: SandboxSubject) -> str | None:
    return lacks_network(subject, "allowlist")


def _lacks_public(subject: SandboxSubject) -> str | None:
    return lacks_network(subject, "public")


def _lacks_none(subject: SandboxSubject) -> str | None:
    return lacks_network(subject, "none")


def _lacks_networks(subject: SandboxSubject) -> str | None:
    return None if _open_modes(subject) else "capabilities: only the network `none`"


def _lacks_doors(subject: SandboxSubject) -> str | None:
    return None if subject.capabilities.doors else "capabilities: no doors"


def _open_modes(subject: SandboxSubject) -> list[NetworkMode]:
    return sorted(subject.capabilities.network_modes - {"none"})


@promise(_lacks_allowlist)
async def only_allowed_hosts_are_reachable(subject: SandboxSubject) -> None:
    """The proxy in the variables reaches allowed hosts only.

    Other hosts get no request, with or without the proxy.
    """
    async with _serving("127.0.0.2") as listed, _serving("127.0.0.3") as other:
        spec = subject.spec_with(network="allowlist", allowed_hosts=(listed.host,))
        async with subject.open_sandbox(spec=spec) as sandbox:
            expect_equal(
                await _fetch(sandbox, listed.url), "hello\n", "the answer of an allowed host"
            )
            for env in (None, _UNPROXIED):
                found = await _fetch(sandbox, other.url, env)
                expect(found != "hello\n", "a host that is not allowed answers")
            expect_equal(other.heads, list[str](), "the requests to a host that is not allowed")


@promise()
async def allowed_hosts_need_an_allowlist_network(subject: SandboxSubject) -> None:
    """`allowed_hosts` with another network than `allowlist` raises UsageError."""
    for mode in sorted(subject.capabilities.network_modes - {"allowlist"}):
        spec = subject.spec_with(network=mode, allowed_hosts=("example.org",))
        await expect_error(UsageError, subject.provider.create(spec), f"hosts in {mode!r}")


@promise()
async def loopback_works_in_every_network(subject: SandboxSubject) -> None:
    """A client inside reaches a server inside, in spite of proxy variables."""
    for mode in sorted(subject.capabilities.network_modes):
        async with subject.open_sandbox(spec=subject.spec_with(network=mode)) as sandbox:
            found = await _python(sandbox, _TO_ITSELF)
            expect_equal(found, "200\n", f"the answer of a server inside, in {mode!r}")


@promise(_lacks_networks)
async def the_model_answers_in_every_network_but_none(subject: SandboxSubject) -> None:
    """The model answers on loopback inside. Its headers are added outside of the sandbox."""
    for mode in _open_modes(subject):
        try:
            await _reaches_its_model(subject, mode)
        except SandboxUnsupportedError as error:
            expect(
                mode != "model-only", f"the model cannot be reached in network {mode!r}: {error}"
            )
            raise CheckSkippedError(f"not claimed: no model in network {mode!r}") from error


async def _reaches_its_model(subject: SandboxSubject, mode: NetworkMode) -> None:
    async with _serving("127.0.0.1") as server:
        headers = {"x-kit": "kept outside"}
        model = Door(upstream=f"{server.url}/base", port=free_port(), headers=headers)
        async with subject.open_sandbox(
            spec=subject.spec_with(network=mode, doors=(model,))
        ) as sandbox:
            found = await _fetch(sandbox, f"http://127.0.0.1:{model.port}/models")
            expect_equal(found, "hello\n", f"the model's answer in {mode!r}")
            seen = await sandbox.exec("env; cat /proc/*/environ 2>/dev/null")
            expect("kept outside" not in seen.stdout, "a header of the model is inside")
        head = server.heads[0].lower()
        expect(head.startswith("get /base/models "), f"the model got the request {head!r}")
        expect("x-kit: kept outside" in head, "the request does not have the model's header")


@promise(_lacks_doors)
async def two_doors_lead_to_two_upstreams(subject: SandboxSubject) -> None:
    """A sandbox has several doors at once, each with its own port, upstream and headers."""
    async with _serving("127.0.0.1") as first, _serving("127.0.0.1") as second:
        doors = (
            Door(upstream=f"{first.url}/a", port=free_port(), headers={"x-kit": "first"}),
            Door(name="tools", upstream=second.url, port=free_port(), headers={"x-kit": "second"}),
        )
        spec = subject.spec_with(network="model-only", doors=doors)
        async with subject.open_sandbox(spec=spec) as sandbox:
            for door in doors:
                found = await _fetch(sandbox, f"http://127.0.0.1:{door.port}/models")
                expect_equal(found, "hello\n", f"the response through the door {door.name!r}")
        counts = [len(server.heads) for server in (first, second)]
        expect_equal(counts, [1, 1], "the requests that each upstream got")
        asked = [head.lower() for server in (first, second) for head in server.heads]
        expect(asked[0].startswith("get /a/models "), f"the first upstream got {asked[0]!r}")
        expect("x-kit: first" in asked[0], "the first request has other headers")
        expect("x-kit: second" in asked[1], "the second request has other headers")


@promise(_lacks_doors)
async def doors_must_differ_in_name_and_port(subject: SandboxSubject) -> None:
    """Two doors with one name, or with one port, raise UsageError."""
    first = Door(upstream="http://127.0.0.1:9", port=8721)
    for other in (first.model_copy(update={"port": 8722}), first.model_copy(update={"name": "b"})):
        spec = subject.spec_with(network="model-only", doors=(first, other))
        await expect_error(
            UsageError, subject.provider.create(spec), "two doors with the same name or port"
        )


@promise(_lacks_none)
async def a_model_needs_another_network_than_none(subject: SandboxSubject) -> None:
    """A door with network `none` raises SandboxUnsupportedError; no network is opened."""
    model = Door(upstream="http://127.0.0.1:9")
    call = subject.provider.create(subject.spec_with(network="none", doors=(model,)))
    await expect_error(SandboxUnsupportedError, call, "a model without a network")


@promise(_lacks_public)
async def a_public_network_has_a_route(subject: SandboxSubject) -> None:
    """The sandbox has a route beyond loopback, unless the host does not have such a route."""
    async with subject.open_sandbox(spec=subject.spec_with(network="public")) as sandbox:
        table = await sandbox.exec("cat /proc/net/route")
        if not table.ok:
            raise CheckSkippedError(
                "the sandbox does not have /proc/net/route, which the check reads"
            )
        if routes(table.stdout) <= {"lo"}:
            expect(_routes_of_host() <= {"lo"}, "the sandbox has no route beyond loopback")
            raise CheckSkippedError("the host has no route beyond loopback")


def _routes_of_host() -> set[str]:
    return routes(Path("/proc/net/route").read_text(encoding="ascii"))


async def _fetch(sandbox: Sandbox, url: str, env: _Variables = None) -> str:
    return await _python(sandbox, _FETCH, url, env=env)


async def _python(sandbox: Sandbox, program: str, *words: str, env: _Variables = None) -> str:
    if not (await sandbox.exec("command -v python3")).ok:
        raise CheckSkippedError("the sandbox does not have python3, which the check runs")
    found = await sandbox.exec(["python3", "-I", "-c", program, *words], env=env)
    expect(found.ok, f"the program inside failed: {found.stderr}")
    return found.stdout


NETWORK_CHECKS: tuple[SandboxCheck, ...] = (
    only_allowed_hosts_are_reachable,
    allowed_hosts_need_an_allowlist_network,
    loopback_works_in_every_network,
    the_model_answers_in_every_network_but_none,
    two_doors_lead_to_two_upstreams,
    doors_must_differ_in_name_and_port,
    a_model_needs_another_network_than_none,
    a_public_network_has_a_route,
)
