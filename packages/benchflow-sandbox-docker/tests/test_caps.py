"""What holds a container down, as the engine and the kernel say it."""

import os
import stat
import subprocess
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory

import docker
import pytest

LOOK = """
import os
def read(*paths):
    return next((open(p).read().split() for p in paths if os.path.exists(p)), [])
print(*read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu.max")[:1])
print(*read("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max"))
print(*read("/sys/fs/cgroup/pids/pids.max", "/sys/fs/cgroup/pids.max"))
"""


def test_a_container_is_held_down_and_ends_at_once(with_box, api):
    async def check(box):
        host = api.inspect_container(f"benchflow-{box.id}")["HostConfig"]
        assert host["SecurityOpt"] == ["no-new-privileges"]
        assert host["CapDrop"] == ["ALL"]
        assert "SYS_ADMIN" not in str(host["CapAdd"])
        assert not host["Privileged"]
        assert host["RestartPolicy"]["Name"] == "no"
        assert api.inspect_container(f"benchflow-{box.id}")["Config"]["StopTimeout"] == 0
        # However much the inside writes: no file of a log grows.
        assert host["LogConfig"] == {"Type": "none", "Config": {}}
        assert (await box.exec("seq 100000 > /proc/1/fd/1", user="root")).stdout == ""
        with pytest.raises(docker.errors.APIError, match="does not support reading"):
            api.logs(f"benchflow-{box.id}")
        quota, memory, pids = (await box.exec(["python3", "-I", "-c", LOOK])).stdout.split()
        assert (quota, memory, pids) == ("50000", str(96 << 20), "34")

    with_box(check, limits={"cpus": 0.5, "memory_mb": 96, "pids": 33})


def test_the_first_process_buries_whom_others_left(with_box):
    async def check(box):
        await box.exec("for i in $(seq 50); do (true &) ; done")
        zombies = "cat /proc/[0-9]*/stat | grep -c ') Z ' || true"
        while (await box.exec(zombies, timeout=30)).stdout != "0\n":
            pass  # the test's own timeout ends this

    with_box(check)


def test_capabilities_have_the_refusals_of_the_engine(with_provider, api):
    async def check(provider):
        found = await provider.capabilities()
        assert "live" not in found.snapshot_levels
        assert "use the local sandbox" in found.notes["live"]
        if not api.info()["ExperimentalBuild"]:
            assert "experimental" in found.notes["live"]
        assert ("disk" in found.resource_limits) != ("disk" in found.notes)
        if "disk" in found.notes:
            assert "storage-opt" in found.notes["disk"]

    with_provider(check)


SOCKET = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
SCRIPT = """
import asyncio, os, sys
from pathlib import Path
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_docker import DockerProvider

async def main():
    store = Path(sys.argv[2])
    async with DockerProvider(image=sys.argv[1], store=store / "store") as provider:
        box = await provider.create(SandboxSpec())
        (store / "up").write_text("up")
        await box.upload(store / "up", "/workspace/up", user="agent")
        print(os.getuid(), (await box.exec("id -un; cat up")).stdout.split())
        child = await provider.create(SandboxSpec(), image=await box.snapshot())
        await child.download("/workspace/up", store / "down")
        print((store / "down").read_text())

asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_an_operator_who_is_not_root_needs_no_more_than_the_group_of_the_socket(image):
    place = Path(SOCKET.removeprefix("unix://")).stat()
    assert place.st_gid
    assert stat.S_IMODE(place.st_mode) & stat.S_IWGRP
    # Not a directory of pytest's, each run of which closes all of them to others.
    with TemporaryDirectory() as home:
        os.chown(home, 12345, 12345)
        done = as_operator([interpreter(), "-c", SCRIPT, image, home], place.st_gid)
    assert done.stdout == "12345 ['agent', 'up']\nup\n", done.stderr


def as_operator(command, *groups):
    return subprocess.run(
        command,
        env={
            "PYTHONPATH": ":".join(sys.path),
            "PATH": os.environ["PATH"],
            "DOCKER_HOST": SOCKET,
        },
        capture_output=True,
        text=True,
        check=False,
        user=12345,
        group=12345,
        extra_groups=groups,
    )


def interpreter():
    """Find a Python that another user can run, and that can load the same packages."""
    own = f"python{sysconfig.get_python_version()}"
    systems = [f"/usr/bin/{own}", f"/usr/local/bin/{own}"]
    for python in (sys.executable, *systems):
        try:
            if as_operator([python, "-c", "import pydantic"]).returncode == 0:
                return python
        except (FileNotFoundError, PermissionError):
            continue
    # A version manager below a user's home has one for nobody else; the system's must do.
    there = any(Path(python).exists() for python in systems)
    why = f"no {own} here can be run by another user"
    return (pytest.fail if there else pytest.skip)(why)
