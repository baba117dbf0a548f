"""The engine's configuration of a new container."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchflow_contracts.sandbox import NetworkMode, SandboxSpec
from benchflow_sandbox_core.fifo.connections import INIT
from benchflow_sandbox_core.host_ports import guest_ports
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
"""The capabilities of root that package managers, services and a switch of the user need."""
NETWORKS: dict[NetworkMode, str] = {
    "none": NOTHING,
    "model-only": NOTHING,
    "allowlist": NOTHING,
    "public": BRIDGE,
}


@dataclass(frozen=True, slots=True)
class ContainerConfig:
    """The configuration of one container before its creation."""

    name: str
    image: str
    pipes: Path
    """The host's directory of the named pipes to the container."""
    labels: dict[str, str]
    capped: bool = False
    """Whether the engine can limit the size of the container's files."""

    def arguments(self, spec: SandboxSpec) -> dict[str, Any]:
        """Return the arguments of the engine's `create`.

        The directory of the pipes is mounted read-only. Existing pipes can still be used, and
        root inside cannot write files to the host.
        """
        return {
            "Image": self.image,
            "Entrypoint": [INIT],
            "Cmd": [",".join(str(port) for port in guest_ports(spec)) or "0"],
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
            # Process 1 belongs to BenchFlow and counts too.
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


def check(spec: SandboxSpec) -> None:
    """Refuse a spec that no container can fulfil.

    Raises:
        UsageError: A path inside, an allowed host or a door's URL is not valid.
    """
    check_spec(spec, services=True)
