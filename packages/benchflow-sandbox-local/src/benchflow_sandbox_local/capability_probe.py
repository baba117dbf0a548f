"""Detect capabilities: use each one once in a real sandbox."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from benchflow_contracts.door import Door, DoorPath
from benchflow_contracts.errors import BenchFlowError, SandboxLimitError, SandboxUnsupportedError
from benchflow_contracts.image import ImageRecipe
from benchflow_contracts.limits import ResourceKind, ResourceLimits
from benchflow_contracts.sandbox import (
    NetworkMode,
    SandboxCapabilities,
    SandboxSpec,
    SnapshotLevel,
)
from benchflow_sandbox_core.proxy.server import proxy_port

from benchflow_sandbox_local.live.fork_probe import probe_live
from benchflow_sandbox_local.live.lazy_probe import probe_lazy
from benchflow_sandbox_local.live.probe_cache import cached_probe

from .manager import BoxManager
from .sandbox import LocalSandbox

_LIMITS = ResourceLimits(memory_mb=96, pids=24, cpus=1.0, disk_mb=8)
_REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nprobe"


@dataclass(slots=True)
class _ProbeResults:
    limits: set[ResourceKind] = field(default_factory=lambda: {"output"})
    levels: set[SnapshotLevel] = field(default_factory=set[SnapshotLevel])
    modes: set[NetworkMode] = field(default_factory=lambda: {"none"})
    notes: dict[str, str] = field(default_factory=dict[str, str])
    doors: DoorPath | None = None
    users: bool = False
    freeze: bool = False
    kill_all: bool = False

    async def attempt(self, name: str, action: Callable[[], Awaitable[None]]) -> bool:
        """Try one capability. If it fails, note the reason and return False."""
        try:
            await action()
        except BenchFlowError as error:
            self.notes[name] = f"{error} (hint: {error.hint})"
            return False
        return True


async def probe(manager: BoxManager) -> SandboxCapabilities:
    """Try every capability. Leave out each one that fails, with a note of the reason.

    Raises:
        SandboxUnsupportedError: No sandbox can be created.
    """
    results = _ProbeResults()
    door, server = await _upstream()
    async with server:
        spec = SandboxSpec(limits=_LIMITS, network="model-only", doors=(door,))
        sandbox = await manager.create(spec, None, {})
        try:
            await _limits(sandbox, results)
            if await results.attempt("users", lambda: _users(sandbox)):
                results.users = True
            if await results.attempt("model-only", lambda: _relay(sandbox, door.port)):
                results.modes.add("model-only")
                results.doors = sandbox.running.door_path
            await results.attempt("allowlist", lambda: _allowed(manager, door, results))
            if await results.attempt("freeze", lambda: _freeze(sandbox)):
                results.freeze = True
            if await results.attempt("kill_all", lambda: _kill_all(sandbox)):
                results.kill_all = True
            if await results.attempt("filesystem", lambda: _snapshot(manager, sandbox)):
                results.levels.add("filesystem")
        finally:
            await sandbox.teardown()
        builds = await results.attempt("builds", lambda: _build(manager))
        if await results.attempt("live", lambda: _live(manager, door)):
            results.levels.add("live")
            await results.attempt("lazy", lambda: _lazy(manager))
    return SandboxCapabilities(
        isolation=manager.runtime.isolation,
        snapshot_levels=frozenset(results.levels),
        network_modes=frozenset(results.modes),
        resource_limits=frozenset(results.limits),
        users=results.users,
        freeze="kernel" if results.freeze else "none",
        snapshot_consistency="instant" if "filesystem" in results.levels else None,
        kill_all=results.kill_all,
        network_switch=True,
        builds=builds,
        doors=results.doors,
        live_engine=manager.runtime.live.name if "live" in results.levels else None,
        notes={**results.notes, **manager.host.notes},
    )


async def _upstream() -> tuple[Door, asyncio.Server]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_REPLY)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    return Door(upstream=f"http://127.0.0.1:{port}"), server


async def _limits(sandbox: LocalSandbox, results: _ProbeResults) -> None:
    actions: dict[ResourceKind, Callable[[LocalSandbox], Awaitable[None]]] = {
        "disk": _disk,
        "memory": _memory,
        "pids": _pids,
        "cpu": _cpu,
    }
    for kind, action in actions.items():
        if await results.attempt(kind, partial(action, sandbox)):
            results.limits.add(kind)


async def _disk(sandbox: LocalSandbox) -> None:
    result = await sandbox.exec("head -c 16777216 /dev/zero > fill; rm -f fill; wc -c < /dev/null")
    if "space" not in result.stderr:
        raise SandboxUnsupportedError("more was written than disk_mb allows")


async def _memory(sandbox: LocalSandbox) -> None:
    _needs(sandbox, "memory")
    # `tail` holds a stream without a line end completely in memory.
    command = ["/bin/sh", "-c", "head -c 268435456 /dev/zero | exec tail"]
    try:
        result = await sandbox.exec(command, timeout=20)
    except SandboxLimitError:
        return
    if result.ok:
        raise SandboxUnsupportedError("more memory was used than memory_mb allows")


async def _pids(sandbox: LocalSandbox) -> None:
    _needs(sandbox, "pids")
    script = "i=0; while [ $i -lt 40 ]; do sleep 1 & i=$((i+1)); done; kill $(jobs -p); wait"
    before = sandbox.group.hits("pids")
    try:
        await sandbox.exec(["/bin/sh", "-c", script], timeout=20)
    except SandboxLimitError:
        return
    if sandbox.group.hits("pids") == before:
        raise SandboxUnsupportedError("more processes were started than pids allows")


async def _cpu(sandbox: LocalSandbox) -> None:
    # The kernel accepted the quota when the group was created; otherwise `create` had raised.
    _needs(sandbox, "cpu")


def _needs(sandbox: LocalSandbox, kind: ResourceKind) -> None:
    if kind not in sandbox.group.enforced:
        raise SandboxUnsupportedError(
            f"no control group of this process can limit {kind}",
            hint="run as root, or in a session with a delegated cgroup v2 group",
        )


async def _users(sandbox: LocalSandbox) -> None:
    default = await sandbox.exec(["id", "-u"])
    root = await sandbox.exec(["id", "-u"], user="root")
    if default.stdout == root.stdout:
        raise SandboxUnsupportedError(
            "root and the default user are the same user of the host",
            hint="run as root to have users",
        )


async def _relay(sandbox: LocalSandbox, port: int) -> None:
    try:
        reader, writer = await sandbox.connect(port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        reply = await reader.read()
        writer.close()
    except OSError as error:
        raise SandboxUnsupportedError(f"the relay cannot be reached: {error}") from error
    if not reply.endswith(b"probe"):
        raise SandboxUnsupportedError("the relay does not reach its upstream")


async def _allowed(manager: BoxManager, door: Door, results: _ProbeResults) -> None:
    outside = urlsplit(door.upstream)
    hosts = (str(outside.hostname),)
    spec = SandboxSpec(network="allowlist", allowed_hosts=hosts, doors=(door,), limits=_LIMITS)
    sandbox = await manager.create(spec, None, {})
    try:
        port = proxy_port(spec)
        assert port is not None
        for host, expected in ((outside.netloc, b"probe"), ("192.0.2.1", b"403 Forbidden")):
            reader, writer = await sandbox.connect(port)
            writer.write(f"GET http://{host}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            reply = await reader.read()
            writer.close()
            if expected not in reply:
                raise SandboxUnsupportedError(f"the proxy responds {reply[:200]!r} for {host}")
    except OSError as error:
        raise SandboxUnsupportedError(f"the proxy cannot be reached: {error}") from error
    finally:
        await sandbox.teardown()
    results.modes.add("allowlist")


async def _kill_all(sandbox: LocalSandbox) -> None:
    process = await sandbox.spawn(["sleep", "60"])
    await sandbox.kill_all()
    await process.wait()
    await process.aclose()
    await sandbox.exec("true")


async def _freeze(sandbox: LocalSandbox) -> None:
    async with sandbox.freeze(), sandbox.freeze():
        pass
    await sandbox.exec(["true"], timeout=10)


async def _build(manager: BoxManager) -> None:
    with TemporaryDirectory() as context:
        # A new image each time: an image of the store would not prove that builds work now.
        recipe = ImageRecipe(context=Path(context))
        text = f"FROM scratch\nCOPY Dockerfile /probe\n# {context}\n"
        await asyncio.to_thread((recipe.context / recipe.dockerfile).write_text, text)
        source = await manager.builder.source(SandboxSpec(recipe=recipe))
    if not (source.lowers[0] / "probe").is_file():
        raise SandboxUnsupportedError("an image lacks a file that COPY added")
    await manager.builder.delete(source)


async def _live(manager: BoxManager, door: Door) -> None:
    spec = SandboxSpec(network="model-only", doors=(door,))
    engine = manager.runtime.live
    lost = await cached_probe(
        await engine.probe(),
        lambda: probe_live(manager, spec, without=engine.lost_in_fork),
    )
    if lost:
        raise SandboxUnsupportedError(
            lost, hint="use level 'filesystem', or another kernel or CRIU"
        )


async def _lazy(manager: BoxManager) -> None:
    """Allow lazy restores of large images if the probe of a lazy restore loses nothing."""
    engine = manager.runtime.live
    policy = engine.lazy_policy
    if policy is None or policy.megabytes is None:
        return
    lost = await cached_probe(
        f"{await engine.probe()} lazily",
        lambda: probe_lazy(manager, policy, SandboxSpec()),
    )
    if lost:
        raise SandboxUnsupportedError(lost, hint="each child waits for all of its memory")
    policy.is_proven = True


async def _snapshot(manager: BoxManager, sandbox: LocalSandbox) -> None:
    await sandbox.exec("echo before > state")
    image = await sandbox.snapshot()
    try:
        await sandbox.exec("echo after > state")
        child = await manager.create(sandbox.spec, image, {})
        try:
            copied = await child.exec(["cat", "state"])
        finally:
            await child.teardown()
        await sandbox.restore(image)
        restored = await sandbox.exec(["cat", "state"])
    finally:
        await manager.discard(image)
    if (copied.stdout, restored.stdout) != ("before\n", "before\n"):
        raise SandboxUnsupportedError("a snapshot did not contain the files")
