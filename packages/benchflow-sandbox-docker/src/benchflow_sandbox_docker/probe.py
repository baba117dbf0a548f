"""Detect the capabilities of containers on this machine, by real probes."""

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from benchflow_contracts.container import ContainerOptions
from benchflow_contracts.errors import SandboxError
from benchflow_contracts.image import ImageRecipe
from benchflow_contracts.limits import ResourceKind
from benchflow_contracts.sandbox import NetworkMode, SandboxCapabilities, SandboxSpec, SnapshotLevel
from benchflow_sandbox_core.proxy.server import proxy_port
from docker import APIClient

from .container_manager import ContainerManager
from .engine import BRIDGE
from .sandbox import DockerSandbox

_BUILD_SECONDS = 60
_PROXIED = SandboxSpec(network="allowlist")
_WITH_NETWORK = SandboxSpec(container=ContainerOptions(volumes={"/probe": "probe"}))


async def probe(manager: ContainerManager) -> SandboxCapabilities:
    """Detect the capabilities with real containers. Takes some seconds.

    Raises:
        SandboxError: The engine cannot run a container.
    """
    notes: dict[str, str] = {}
    modes: set[NetworkMode] = {"none", "model-only", "allowlist"}
    levels: set[SnapshotLevel] = set()
    services = await _has_services(manager, notes)
    container = await manager.create(_PROXIED, None, {})
    sandbox = DockerSandbox(container)
    try:
        await _ask_proxy(sandbox)
        users = (await sandbox.exec(["id", "-u"], user="root")).stdout == "0\n"
        freeze = False
        try:
            async with sandbox.freeze():
                freeze = True
            await manager.resources.images.discard(await sandbox.snapshot())
            levels.add("filesystem")
        except SandboxError as error:
            notes["freeze" if not freeze else "filesystem"] = str(error)
        notes["live"] = await _why_not_live(manager, container.running.container)
    finally:
        await sandbox.teardown()
    builds = await _builds(manager, notes)
    if await manager.resources.engine.has_network(BRIDGE):
        modes.add("public")
    else:
        notes["public"] = "the engine has no network 'bridge'"
    return SandboxCapabilities(
        isolation="container",
        snapshot_levels=frozenset(levels),
        network_modes=frozenset(modes),
        resource_limits=await _limits(manager, notes),
        users=users,
        freeze="kernel" if freeze else "none",
        snapshot_consistency="instant" if levels else None,
        network_switch=True,
        services=services,
        builds=builds,
        doors="tunnel",
        notes=notes,
    )


async def _why_not_live(manager: ContainerManager, container: str) -> str:
    """Request a checkpoint from the engine. Return the reason that live snapshots are missing."""

    def ask(api: APIClient) -> str:
        url = f"{api.base_url}/v{api.api_version}/containers/{container}/checkpoints"
        body = {"CheckpointID": "probe", "Exit": False}
        answer = api.post(url, json=body, timeout=api.timeout)
        if answer.status_code == 201:
            return "the engine's checkpoints do not contain the pipes into a container"
        return f"the engine cannot create a checkpoint: {answer.text.strip()[:300]}"

    return (
        f"{await manager.resources.engine.run(ask, 'checkpoint')}; use the local sandbox for them"
    )


async def _has_services(manager: ContainerManager, notes: dict[str, str]) -> bool:
    """Create a sandbox on a private network, as for a sandbox with services."""
    try:
        await (await manager.create(_WITH_NETWORK, None, {})).remove()
    except SandboxError as error:
        notes["services"] = str(error)
        return False
    return True


async def _builds(manager: ContainerManager, notes: dict[str, str]) -> bool:
    """Build an empty image and delete it."""
    with TemporaryDirectory(prefix="benchflow-") as context:
        (Path(context) / "Dockerfile").write_text(f"FROM scratch\nLABEL probe={context}\n")
        spec = SandboxSpec(recipe=ImageRecipe(context=Path(context), timeout_sec=_BUILD_SECONDS))
        try:
            image = await manager.resources.resolver.resolve(spec, None)
        except SandboxError as error:
            notes["builds"] = str(error)
            return False
    # This also deletes its layers, which no other image has.
    with suppress(SandboxError):
        await manager.resources.engine.do("remove_image", image.id)
    return True


async def _ask_proxy(sandbox: DockerSandbox) -> None:
    """Request a forbidden host through the proxy, to test the whole path of a request."""
    reader, writer = await sandbox.connect(proxy_port(_PROXIED) or 0)
    writer.write(b"CONNECT 127.0.0.1:1 HTTP/1.1\r\n\r\n")
    status_line = await reader.readline()
    writer.close()
    if b" 403 " not in status_line:
        raise SandboxError(f"unexpected answer of a sandbox's proxy: {status_line!r}")


async def _limits(manager: ContainerManager, notes: dict[str, str]) -> frozenset[ResourceKind]:
    """Return the limits that the engine can set. The engine silently ignores the others."""
    info = await manager.resources.engine.do("info")
    known: dict[ResourceKind, bool] = {
        "memory": info["MemoryLimit"],
        "pids": info["PidsLimit"],
        "cpu": info["CpuCfsQuota"],
    }
    image = (await manager.resources.resolver.resolve(SandboxSpec(), None)).id
    if (why := await manager.resources.disk_limit.why_unsupported(image)) is None:
        known["disk"] = True
    else:
        notes["disk"] = why
    for kind, is_available in known.items():
        if not is_available:
            notes[kind] = "the kernel of the engine does not have this control group"
    return frozenset({"output", *(kind for kind, is_available in known.items() if is_available)})
