"""Doors whose credential the cloud adds outside of the sandbox."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from benchflow_contracts.door import Door
from benchflow_contracts.errors import SandboxError, SandboxUnsupportedError
from benchflow_contracts.sandbox import Sandbox, SandboxSpec

from .cloud import CloudSandbox

_FILE = "/.benchflow/environment"
_CERTIFICATES = (
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
)
"""The variables by which a cloud lets programs trust the certificates of its own proxy."""


def open_hosts(spec: SandboxSpec) -> tuple[str, ...]:
    """Return the hosts that a cloud opens for the doors of a spec that are not served inside.

    A door with the path `token` opens its host in the network `model-only`.
    """
    hosts = spec.outside_hosts("egress")
    if spec.network == "model-only":
        hosts = tuple(dict.fromkeys((*hosts, *spec.outside_hosts("token"))))
    return hosts


@runtime_checkable
class HasPlaceholders(Protocol):
    """A `CloudSandbox` whose processes send a placeholder, which the cloud replaces outside."""

    @property
    def placeholders(self) -> Mapping[str, str]:
        """The placeholder of the bearer token of each door with the path `egress`, by name."""
        ...


def with_placeholders(spec: SandboxSpec, cloud: CloudSandbox) -> SandboxSpec:
    """Return the spec, whose doors have the placeholders of the cloud."""
    found: Mapping[str, str] = cloud.placeholders if isinstance(cloud, HasPlaceholders) else {}
    doors = [
        door.model_copy(update={"placeholder": found.get(door.name)})
        if door.path == "egress"
        else door
        for door in spec.doors
    ]
    return spec.model_copy(update={"doors": tuple(doors)})


async def certificate_variables(cloud: CloudSandbox, sandbox: Sandbox) -> dict[str, str]:
    """Return the variables of the cloud's own commands that name certificates.

    The cloud reads TLS to add a credential. Processes of the link do not inherit its variables.

    Raises:
        SandboxError: They cannot be read.
    """
    await cloud.run(["/bin/sh", "-c", f"umask 077; env > {_FILE}"])
    result = await sandbox.exec(["cat", _FILE], user="root", cwd="/", timeout=30)
    if not result.ok:
        raise SandboxError(f"cannot read the variables of the cloud: {result.stderr[-200:]}")
    pairs = [line.partition("=") for line in result.stdout.splitlines()]
    return {name: value for name, _, value in pairs if name in _CERTIFICATES}


def egress_doors(spec: SandboxSpec, *, port: int, cloud: str) -> list[Door]:
    """Return the doors whose headers a cloud adds outside, if it does so at one port only.

    Raises:
        SandboxUnsupportedError: A door has another port.
    """
    doors = [door for door in spec.doors if door.path == "egress"]
    for door in doors:
        # Plain HTTP is for the loopback alone: the gateway refuses all other URLs of that kind.
        if door.upstream.startswith("https:") and door.endpoint.port != port:
            raise SandboxUnsupportedError(
                f"{cloud} adds headers at port {port} only, and {door.upstream!r} has another one",
                hint=f"serve the gateway at port {port}, or use --model-access tunnel",
            )
    return doors
