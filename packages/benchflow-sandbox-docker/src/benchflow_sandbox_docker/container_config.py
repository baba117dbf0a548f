"""What the engine is told of a new container."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchflow_contracts.sandbox import NetworkMode, SandboxSpec
from benchflow_sandbox_core.fifo.connections import INIT
from benchflow_sandbox_core.proxy.server import proxy_port
from benchflow_sandbox_core.spec import check_spec
from benchflow_sandbox_native import guest_path

from .engine import BRIDGE, NOTHING

CAPABILITIES = (
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "NET_BIND_SERVICE",
    "SETGID",
    "SETPCAP",
    "SETUID",
)
"""What package managers and services need of root, and what takes all of it from other users."""
NETWORKS: dict[NetworkMode, str] = {
    "none": NOTHING,
    "model-only": NOTHING,
    "allowlist": NOTHING,
    "public": BRIDGE,
}


@dataclass(frozen=True, slots=True)
class ContainerConfig:
    """One container, before it is made."""

    name: str
    image: str
    pipes: Path
    """The host's directory of the pipes that lead inside."""
    labels: dict[str, str]
    capped: bool = False
    """Whether the engine can keep its files below a size."""

    def arguments(self, spec: SandboxSpec) -> dict[str, Any]:
        """Return the arguments of the engine's `create`.

        The pipes are shown read-only: that keeps nobody from a pipe that is there, and root
        inside from writing files to the host.
        """
        return {
            "Image": self.image,
            "Entrypoint": [INIT],
            "Cmd": [",".join(str(port) for port in ports_of(spec)) or "0"],
            "User": "0:0",
            "WorkingDir": "/",
            "Labels": self.labels,
            "Healthcheck": {"Test": ["NONE"]},
            "StopTimeout": 0,
            "Hostname": "sandbox",
            "HostConfig": self._host(spec),
        }

    def _host(self, spec: SandboxSpec) -> dict[str, Any]:
        limits = spec.limits
        memory = None if limits.memory_mb is None else limits.memory_mb << 20
        size = limits.disk_mb if self.capped else None
        shown = [(str(guest_path()), INIT), (str(self.pipes), "/.bf/io")]
        shown += [(bundle.source, bundle.target) for bundle in spec.bundles]
        return {
            "NetworkMode": NETWORKS[spec.network],
            "CapDrop": ["ALL"],
            "CapAdd": list(CAPABILITIES),
            "SecurityOpt": ["no-new-privileges"],
            # The first process is one of ours.
            "PidsLimit": None if limits.pids is None else limits.pids + 1,
            "Memory": memory,
            "MemorySwap": memory,
            "NanoCpus": None if limits.cpus is None else int(limits.cpus * 1e9),
            "StorageOpt": None if size is None else {"size": f"{size}m"},
            "LogConfig": {"Type": "none"},
            "RestartPolicy": {"Name": "no"},
            "IpcMode": "private",
            "Mounts": [
                {"Type": "bind", "Source": source, "Target": target, "ReadOnly": True}
                for source, target in shown
            ],
        }


def ports_of(spec: SandboxSpec) -> list[int]:
    """Return the ports of the loopback inside that the host serves: the doors', the proxy's."""
    proxy = proxy_port(spec)
    return [*(door.port for door in spec.doors), *([] if proxy is None else [proxy])]


def check(spec: SandboxSpec) -> None:
    """Refuse what no container of ours can be.

    Raises:
        UsageError: A path is not one inside, a host or the model's URL is none.
    """
    check_spec(spec, services=True)
