"""Checks of a spec that every sandbox of this host makes."""

from collections.abc import Sequence

from benchflow_contracts.container import ContainerOptions
from benchflow_contracts.errors import SandboxUnsupportedError, UsageError
from benchflow_contracts.sandbox import NetworkMode, SandboxSpec

from .proxy.allowlist import Allowlist
from .relay.server import RelayUpstream

MAX_DOORS = 15
"""The guest serves 16 ports: the doors and the proxy."""


def check_spec(spec: SandboxSpec, *, services: bool = False) -> None:
    """Refuse a spec that contradicts itself.

    Raises:
        UsageError: A path, a door or an allowed host is not valid, or there are two images.
        SandboxUnsupportedError: The network has no doors, or services are not supported.
    """
    if not services and (spec.services or spec.container != ContainerOptions()):
        names = ", ".join(service.name for service in spec.services) or "its own options"
        raise SandboxUnsupportedError(
            f"this sandbox cannot have services: {names}", hint="use the docker sandbox"
        )
    if spec.recipe is not None and spec.image is not None:
        raise UsageError(f"both an image {spec.image!r} and a recipe of another", hint="give one")
    workdirs = [spec.workdir] if spec.workdir else []
    for path in (*workdirs, *(bundle.target for bundle in spec.bundles)):
        if not path.startswith("/") or ".." in path.split("/") or "\0" in path:
            raise UsageError(
                f"{path!r} is not a path inside a sandbox",
                hint="name an absolute path without '..'",
            )
    _check_doors(spec)
    allowlist_of(spec)


def _check_doors(spec: SandboxSpec) -> None:
    if not spec.doors:
        return
    if "none" in {spec.network, *spec.switches}:
        raise SandboxUnsupportedError(
            "a door needs another network than 'none'", hint="use 'model-only'"
        )
    names, ports = {door.name for door in spec.doors}, door_ports(spec)
    if len(names) < len(spec.doors) or len(set(ports)) < len(ports):
        raise UsageError("two doors have the same name or the same port", hint="change one of them")
    if len(spec.doors) > MAX_DOORS:
        raise UsageError(f"{len(spec.doors)} doors are over the limit of {MAX_DOORS}")
    for door in spec.doors:
        RelayUpstream.of(door)


def door_ports(spec: SandboxSpec) -> list[int]:
    """Return the ports inside of the served doors, in increasing order."""
    return sorted(door.port for door in spec.served_doors)


def allowlist_of(spec: SandboxSpec) -> Allowlist:
    """Return the hosts that the proxy allows: none unless the network is `allowlist`.

    Raises:
        UsageError: A host is not valid, or the network does not use allowed hosts.
    """
    if spec.allowed_hosts and spec.network != "allowlist":
        raise UsageError(
            f"network {spec.network!r} does not use allowed hosts", hint="use 'allowlist'"
        )
    return Allowlist.parse(spec.allowed_hosts)


def with_network(spec: SandboxSpec, mode: NetworkMode, hosts: Sequence[str]) -> SandboxSpec:
    """Return the spec of a sandbox whose network is switched.

    Raises:
        SandboxUnsupportedError: The mode is not in `switches`.
        UsageError: A host is not valid, or the network does not use allowed hosts.
    """
    if mode not in {spec.network, *spec.switches}:
        raise SandboxUnsupportedError(
            f"network {mode!r} is not among the sandbox's switches",
            hint="name it in `switches`",
        )
    new = spec.model_copy(update={"network": mode, "allowed_hosts": tuple(hosts)})
    allowlist_of(new)
    return new
