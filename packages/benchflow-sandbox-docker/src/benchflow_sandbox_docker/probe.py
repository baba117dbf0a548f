"""What containers can do on this machine, found out by doing it."""

from benchflow_contracts.errors import SandboxError
from benchflow_contracts.limits import ResourceKind
from benchflow_contracts.sandbox import NetworkMode, SandboxCapabilities, SandboxSpec, SnapshotLevel

from .keeper import Keeper

_NOTES = {
    "live": "files only: an engine's checkpoints leave processes behind that nobody can attach to; "
    "the local sandbox takes live snapshots",
    "allowlist": "no network of an engine leads to some hosts only",
    "disk": "the engine's storage driver must be able to set a size, and this one was not asked",
    "save": "snapshots stay in the engine",
}

_WITH_NETWORK = SandboxSpec(volumes={"/probe": "probe"})


async def probe(keeper: Keeper) -> SandboxCapabilities:
    """Make a container and try what can be tried.

    Raises:
        SandboxError: Not even a container can be made.
    """
    notes = dict(_NOTES)
    modes: set[NetworkMode] = {"none", "model-only"}
    levels: set[SnapshotLevel] = set()
    services = await _has_services(keeper, notes)
    sandbox = await keeper.create(SandboxSpec(), None, {})
    try:
        users = (await sandbox.exec(["id", "-u"], user="root")).stdout == "0\n"
        freeze = False
        try:
            async with sandbox.freeze():
                freeze = True
            await keeper.images.discard(await sandbox.snapshot())
            levels.add("filesystem")
        except SandboxError as error:
            notes["freeze" if not freeze else "filesystem"] = str(error)
    finally:
        await sandbox.teardown()
    if await keeper.has_bridge():
        modes.add("public")
    else:
        notes["public"] = "the engine has no network 'bridge'"
    return SandboxCapabilities(
        isolation="container",
        snapshot_levels=frozenset(levels),
        network_modes=frozenset(modes),
        resource_limits=await _limits(keeper, notes),
        users=users,
        freeze=freeze,
        services=services,
        notes=notes,
    )


async def _has_services(keeper: Keeper, notes: dict[str, str]) -> bool:
    """Make a sandbox on a network of its own, as one with services has."""
    try:
        await (await keeper.create(_WITH_NETWORK, None, {})).teardown()
    except SandboxError as error:
        notes["services"] = str(error)
        return False
    return True


async def _limits(keeper: Keeper, notes: dict[str, str]) -> frozenset[ResourceKind]:
    """Ask the engine, which refuses nothing: a limit that it cannot set it leaves out."""
    info = await keeper.engine.do("info")
    known: dict[ResourceKind, bool] = {
        "memory": info["MemoryLimit"],
        "pids": info["PidsLimit"],
        "cpu": info["CpuCfsQuota"],
    }
    for kind, there in known.items():
        if not there:
            notes[kind] = "the kernel of the engine has no such control group"
    return frozenset({"output", *(kind for kind, there in known.items() if there)})
