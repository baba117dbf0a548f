import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from benchflow_contracts.bundle import Bundle
from benchflow_contracts.limits import ResourceLimits
from benchflow_contracts.sandbox import SandboxSpec

# Inside a box no namespace can be made: exactly the machine that this is about.
INNER = """
import asyncio, json, os, subprocess, sys
from pathlib import Path
from benchflow_contracts.errors import SandboxUnsupportedError
from benchflow_contracts.sandbox import ReapPolicy, SandboxSpec
from benchflow_testing import check_sandbox
from benchflow_sandbox_local import LocalProvider

async def sleeping():
    # A killed one is counted until its new parent, the init of this box, has collected it.
    for _ in range(1000):
        if (count := os.popen("pgrep -xc sleep").read().strip()) == "0":
            break
        await asyncio.sleep(0.03)
    return count

async def main():
    found = {}
    try:
        await LocalProvider(store=Path("/tmp/a")).create(SandboxSpec())
    except SandboxUnsupportedError as error:
        found["refused"] = [str(error), error.hint]
    async with LocalProvider(store=Path("/tmp/b"), allow_unisolated=True) as provider:
        found["capabilities"] = (await provider.capabilities()).model_dump(mode="json")
        for spec in (SandboxSpec(), SandboxSpec(network="public", image="/usr")):
            try:
                await provider.create(spec)
            except SandboxUnsupportedError as error:
                found.setdefault("wishes", []).append(str(error))
        public = SandboxSpec(network="public")
        sandbox = await provider.create(public)
        await sandbox.exec("(setsid sleep 86398 &)")
        for call in (
            lambda: sandbox.exec("id", user="root"), sandbox.snapshot, sandbox.freeze().__aenter__
        ):
            try:
                await call()
            except SandboxUnsupportedError as error:
                found.setdefault("calls", []).append(str(error))
        await sandbox.teardown()
        found["left"] = sorted(os.listdir("/tmp/b/plain"))
        found["sleeping"] = await sleeping()
        results = await check_sandbox(provider, spec=public)
        found["results"] = [result.model_dump() for result in results]
    subprocess.run([sys.executable, "-c", os.environ["DYING"]], check=True)
    found["reaped"] = len(await provider.reap(ReapPolicy()))
    left = sorted(os.listdir("/tmp/b/plain"))
    found["after"] = [left, await sleeping()]
    print(json.dumps(found))

asyncio.run(main())
"""

DYING = """
import asyncio, os
from pathlib import Path
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_local import LocalProvider

async def main():
    provider = LocalProvider(store=Path("/tmp/b"), allow_unisolated=True)
    box = await provider.create(SandboxSpec(network="public"))
    await box.spawn("(setsid sleep 86397 &); sleep 86397")
    os._exit(0)

asyncio.run(main())
"""


def packages():
    """The directories that the inner provider imports from."""
    return [
        path
        for path in sys.path
        if (path and Path(path).is_dir() and "/lib/python" not in path)
        or path.endswith("site-packages")
    ]


@pytest.mark.timeout(300)
def test_without_namespaces_it_refuses_unless_plain_processes_are_accepted(with_provider):
    python = Path(f"/usr/bin/python{sysconfig.get_python_version()}")
    probe = (
        subprocess.run([python, "-c", "import encodings"], check=False) if python.exists() else None
    )
    if probe is None or probe.returncode:
        pytest.skip("the host's own Python is of another version")

    async def check(provider):
        paths = packages()
        mounts = tuple(Bundle(source=path, target=path, key="k") for path in paths)
        limits = ResourceLimits(pids=2000)
        sandbox = await provider.create(SandboxSpec(bundles=mounts, limits=limits))
        env = {"PYTHONPATH": ":".join(paths), "DYING": DYING}
        result = await sandbox.exec([str(python), "-c", INNER], env=env, timeout=250)
        assert result.ok, result.stderr
        return json.loads(result.stdout)

    found = with_provider(check)
    assert "namespaces" in found["refused"][0]
    assert "allow-unisolated" in found["refused"][1]
    capabilities = found["capabilities"]
    assert capabilities["isolation"] == "none"
    assert capabilities["snapshot_levels"] == []
    assert capabilities["network_modes"] == ["public"]
    assert capabilities["resource_limits"] == ["output"]
    assert not capabilities["users"]
    assert capabilities["freeze"] == "none"
    assert len(found["wishes"]) == 2
    assert len(found["calls"]) == 3
    assert (found["left"], found["sleeping"]) == ([], "0")
    failed = {r["name"]: r["reason"] for r in found["results"] if r["status"] == "failed"}
    assert failed == {}
    assert found["reaped"] == 1
    assert found["after"] == [[], "0"]
