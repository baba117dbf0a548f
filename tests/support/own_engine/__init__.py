"""A Docker engine of a test's own: nobody else's containers are in it, and it can be ended."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import docker
import requests
from watching import DEADLINE, until

_BUILT = "benchflow.kind=built"
ALONE = ("--bridge=none", "--iptables=false", "--ip-forward=false")
"""Options of an engine whose containers have no network."""
_START = 'ip link set lo up && exec dockerd "$@"'


class OwnEngine:
    """An engine in a network namespace of its own, so that it leaves the machine's alone."""

    def __init__(
        self,
        options: Sequence[str] = ALONE,
        programs: Path | None = None,
        *,
        disk_mb: int | None = None,
        lowest_api: str = "1.41",
    ) -> None:
        """Make one with options of dockerd, and a small disk in memory.

        `programs` is the directory of its programs: $BENCHFLOW_ENGINE, then PATH. `lowest_api`
        is the lowest version of the API that the engine takes, and the one that `api` speaks.
        """
        # The path of a socket is short.
        self.home = Path(tempfile.mkdtemp(prefix="bf-engine-", dir="/var/tmp"))
        self.host = f"unix://{self.home}/sock"
        self.log = (self.home / "log").open("wb")
        self.api = docker.APIClient(self.host, version=lowest_api, timeout=60)
        if disk_mb is not None:
            (self.home / "data").mkdir()
            size = f"size={disk_mb}m"
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", size, "tmpfs", self.home / "data"], check=True
            )
        self._options = options
        first = str(programs or os.environ.get("BENCHFLOW_ENGINE", ""))
        path = os.pathsep.join(filter(None, [first, os.environ["PATH"]]))
        self._own = {"PATH": path, "DOCKER_MIN_API_VERSION": lowest_api}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return when it answers."""
        options = [f"--data-root={self.home}/data", f"--exec-root={self.home}/exec"]
        options += [f"--pidfile={self.home}/pid", f"--host={self.host}"]
        command = ["unshare", "--net", "sh", "-c", _START, "sh", *options, *self._options]
        self._process = subprocess.Popen(
            command, stdout=self.log, stderr=self.log, env={**os.environ, **self._own}
        )
        until("an engine that answers", self._answers)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.home / "log").read_text()[-2000:]
        try:
            # The SDK does not close a socket that nobody listens at.
            with socket.socket(socket.AF_UNIX) as reaching:
                reaching.connect(f"{self.home}/sock")
            return bool(self.api.ping())
        except (OSError, requests.RequestException):
            return False

    def end(self) -> None:
        """End it; return when it is gone. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.wait(DEADLINE)

    def kill(self) -> None:
        """Kill the engine at once, and with it its containerd: its containers go on."""
        process, self._process = self._process, None
        assert process is not None
        keeper = int((self.home / "exec/containerd/containerd.pid").read_text())
        process.kill()
        process.wait(DEADLINE)
        # The next one would take it for its own while it ends.
        until("the end of its containerd", lambda: not Path(f"/proc/{keeper}").exists())

    def forsake(self) -> None:
        """Kill it and what waits for each container: nobody will see how one ends."""
        running = [self.api.inspect_container(each["Id"]) for each in self.api.containers()]
        waiting = [_parent(each["State"]["Pid"]) for each in running]
        self.kill()
        for pid in waiting:
            os.kill(pid, signal.SIGKILL)

    def empty(self) -> None:
        """Start it if it does not run, and remove all that is in it but images."""
        if self._process is None:
            self.start()
        for each in self.api.containers(all=True):
            self.api.remove_container(each["Id"], v=True, force=True)
        self.api.prune_networks()
        for each in self.api.volumes()["Volumes"] or ():
            self.api.remove_volume(each["Name"])

    def take(self, image: str) -> None:
        """Copy an image from the engine of the machine."""
        with docker_of_the_machine() as theirs:
            self.api.load_image(theirs.get_image(image))

    def close(self) -> None:
        """End it and remove all that it had."""
        self.end()
        self.api.close()
        self.log.close()
        for place in reversed(self.mounts):
            # One that was killed has unmounted nothing.
            subprocess.run(["umount", place], check=True)
        shutil.rmtree(self.home)

    @property
    def inside(self) -> list[str]:
        """What runs a command where the engine's loopback is."""
        assert self._process is not None
        return ["nsenter", f"--target={self._process.pid}", "--net"]

    @property
    def variables(self) -> dict[str, str]:
        """What leads a runner to this engine."""
        return {**os.environ, "DOCKER_HOST": self.host, "NO_COLOR": "1"}

    @property
    def used_mb(self) -> int:
        """Return what is used of the disk that its files are on."""
        place = os.statvfs(self.home / "data")
        return (place.f_blocks - place.f_bfree) * place.f_frsize >> 20

    def holds(self) -> dict[str, list[str]]:
        """Return all that is in it, by kind, and what is mounted for it."""
        return {
            "containers": sorted(each["Id"] for each in self.api.containers(all=True)),
            "images": sorted(self._images()),
            "volumes": sorted(each["Name"] for each in self.api.volumes()["Volumes"] or ()),
            "networks": sorted(each["Id"] for each in self.api.networks()),
            "mounts": sorted(self.mounts),
        }

    def _images(self) -> set[str]:
        """Return all but what was made of recipes, which is kept for the next run."""
        parents = {each["Id"]: each["ParentId"] for each in self.api.images(all=True)}
        left = set(parents)
        for built in self.api.images(filters={"label": _BUILT}):
            ident = built["Id"]
            while ident in left and (ident == built["Id"] or not self._tags(ident)):
                left.remove(ident)
                ident = parents[ident]
        return left

    def _tags(self, image: str) -> list[str]:
        return list(self.api.inspect_image(image)["RepoTags"] or ())

    @property
    def mounts(self) -> list[str]:
        """Return what is mounted for it."""
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return [place for line in lines if (place := line.split()[4]).startswith(str(self.home))]


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def docker_of_the_machine() -> Any:
    """Return a client of the machine's own engine, which is closed after a block."""
    return closing(docker.APIClient(version="1.41", timeout=60))
