"""`bench env`: environment manifests."""

from pathlib import Path

from benchflow_contracts import ProvisionContext, SandboxSpec
from benchflow_engine.config import RunConfig
from benchflow_engine.flags import RunFlags
from benchflow_engine.planes import open_provider
from benchflow_env_manifest import load_manifest, manifest_environment

from .flags import Json
from .output import note, print_json
from .rollout_flags import Run, configuration


async def check(
    manifest: Path,
    *,
    options: Run = RunFlags(),
    start: bool = False,
    json: Json = False,
) -> int:
    """Check a manifest; with --start, also start its services and read their state.

    Examples:
        bench env check benchmarks/clawsbench/environment.toml
        bench env check benchmarks/clawsbench/environment.toml --start

    Args:
        manifest: Path of the environment.toml.
        options: Options of the sandbox.
        start: Start of the services in a sandbox, with a wait until they are ready.
    """
    environment = load_manifest(manifest)
    report: dict[str, object] = {"manifest": str(manifest), "valid": True}
    if start:
        report |= await _start(manifest, configuration(options))
    if json:
        print_json({**report, "environment": environment.model_dump(mode="json")})
    else:
        note("\n".join(f"{key}: {value}" for key, value in report.items()))
    return 0 if report.get("ready", True) else 1


async def _start(manifest: Path, config: RunConfig) -> dict[str, object]:
    environment = manifest_environment(manifest)()
    task_id = "bench-env-check"
    async with open_provider(config) as provider:
        sandbox = await provider.create(environment.prepare(SandboxSpec(), task_id=task_id))
        try:
            handle = await environment.provision(ProvisionContext(sandbox=sandbox, task_id=task_id))
            probe = await environment.readiness()
            state = await environment.query() if probe.ready else None
        finally:
            await environment.teardown()
            await sandbox.teardown()
    tables = sum(len(tables) for tables in state.databases.values()) if state else 0
    return {
        "services": ", ".join(handle.services) or "-",
        "ready": probe.ready,
        "probes": dict(probe.checked),
        "error": probe.error,
        "waited_sec": round(probe.waited_sec, 3),
        "state_tables": tables,
    }
