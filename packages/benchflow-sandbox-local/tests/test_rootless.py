# An image is put together here from programs of the host, by name.
# ruff: noqa: PTH103, PTH110, PTH114, PTH115, PTH120, PTH123, PTH211, PLW2901

import json
import os
import subprocess
import sys
import sysconfig

import pytest

UID = 12345
SCRIPT = """
import asyncio, json, os, sys
from pathlib import Path
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_testing import check_sandbox
from benchflow_sandbox_local import LocalProvider

async def main():
    image = os.environ.get("IMAGE")
    async with LocalProvider(store=Path(os.environ["STORE"])) as provider:
        capabilities = (await provider.capabilities()).model_dump(mode="json")
        spec = SandboxSpec(image=image)
        sandbox = await provider.create(spec)
        print(json.dumps({
            "uid": os.getuid(),
            "capabilities": capabilities,
            "seen": (await sandbox.exec(os.environ["LOOK"])).stdout,
        }))
        await sandbox.teardown()
        results = await check_sandbox(provider, spec=spec)
        print(json.dumps([result.model_dump() for result in results]))

asyncio.run(main())
"""


def interpreter():
    """Find a Python that another user can run, and that can load the same packages."""
    own = f"python{sysconfig.get_python_version()}"
    for python in (sys.executable, f"/usr/bin/{own}", f"/usr/local/bin/{own}"):
        try:
            if as_user([python, "-c", "import pydantic"]).returncode == 0:
                return python
        except (FileNotFoundError, PermissionError):
            continue
    pytest.skip("no interpreter here can be run by another user")


def as_user(command, **env):
    paths = {"PYTHONPATH": ":".join(sys.path), "PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    return subprocess.run(
        command,
        env={**paths, **env},
        capture_output=True,
        text=True,
        check=False,
        user=UID,
        group=UID,
        extra_groups=[],
        cwd="/",
    )


@pytest.fixture
def place():
    """A directory of the other user that it can reach; pytest's own is private."""
    if os.geteuid() != 0:
        pytest.skip("root is needed to become another user")
    path = subprocess.run(
        ["mktemp", "-d"], capture_output=True, text=True, check=True
    ).stdout.strip()
    os.chown(path, UID, UID)
    yield path
    subprocess.run(["rm", "-rf", path], check=True)


def run(place, look, **env):
    done = as_user([interpreter(), "-c", SCRIPT], STORE=f"{place}/store", LOOK=look, **env)
    assert done.returncode == 0, done.stderr
    first, results = map(json.loads, done.stdout.splitlines())
    return first, results


@pytest.mark.timeout(300)
def test_without_root_the_host_root_is_isolated_and_the_rest_is_told(place):
    first, results = run(
        place, "ls /root /home /etc/shadow; touch /usr/x; id -u; echo $$ > w; cat w"
    )
    assert first["uid"] == UID
    found = first["capabilities"]
    assert found["isolation"] == "namespaces"
    assert found["snapshot_levels"] == ["filesystem"]
    assert sorted(found["network_modes"]) == ["allowlist", "model-only", "none"]
    assert not found["builds"]
    assert {"disk", "output"} <= set(found["resource_limits"])
    assert not found["users"]
    assert "users" in found["notes"]
    for kind in {"memory", "pids", "cpu"} - set(found["resource_limits"]):
        assert "cgroup" in found["notes"][kind]
    assert first["seen"].splitlines()[:3] == ["/home:", "agent", ""]
    assert {r["name"]: r["reason"] for r in results if r["status"] == "failed"} == {}
    assert sum(r["status"] == "passed" for r in results) > 50


@pytest.mark.timeout(300)
def test_without_root_an_image_directory_of_the_user_is_a_root(place):
    image = f"{place}/image"
    os.makedirs(f"{image}/etc")
    for name in ("bin", "lib", "lib64"):
        if os.path.islink(f"/{name}"):
            os.symlink(os.readlink(f"/{name}"), f"{image}/{name}")
    wanted = [
        "sh",
        "cat",
        "ls",
        "id",
        "rm",
        "sleep",
        "dd",
        "mkdir",
        "chmod",
        "test",
        "false",
        "true",
    ]
    wanted += [
        "env",
        "printf",
        "echo",
        "head",
        "wc",
        "ln",
        "mkfifo",
        "stat",
        "bash",
        "tail",
        "touch",
    ]
    files = {os.path.realpath(f"/usr/bin/{name}") for name in wanted}
    listed = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False).stdout
    files |= {word for word in listed.split() if word.startswith("/") and not word.endswith(":")}
    for path in files:
        source = os.path.realpath(path)
        for target in {path, source}:
            target = target if target.startswith("/usr") else f"/usr{target}"
            os.makedirs(os.path.dirname(image + target), exist_ok=True)
            subprocess.run(["cp", "-f", source, image + target], check=True)
    for name in wanted:
        if not os.path.exists(f"{image}/usr/bin/{name}"):
            subprocess.run(
                ["cp", os.path.realpath(f"/usr/bin/{name}"), f"{image}/usr/bin/{name}"], check=True
            )
    with open(f"{image}/etc/mark", "w") as file:
        file.write("image\n")
    subprocess.run(["chown", "-R", f"{UID}:{UID}", image], check=True)
    first, results = run(
        place, "cat /etc/mark; rm /etc/mark; ls /etc/mark; ls /usr/share", IMAGE=image
    )
    assert first["seen"] == "image\n"
    assert os.path.exists(f"{image}/etc/mark")
    assert {r["name"]: r["reason"] for r in results if r["status"] == "failed"} == {}
