"""The provider `remote`: sandboxes on another host."""

import os
from typing import Any, cast

from benchflow_contracts.errors import SandboxError, SandboxUnsupportedError, UsageError
from benchflow_contracts.sandbox import NetworkMode, SandboxCapabilities
from pydantic import ValidationError

from benchflow_sandbox_remote.provider import RemoteProvider

from .cloud import RemoteHost, SshCloud, host_of
from .messages import VERSION

_THROUGH_LINK: frozenset[NetworkMode] = frozenset({"none", "model-only", "allowlist"})
_PUBLIC: frozenset[NetworkMode] = frozenset({"public"})
CAPABILITIES = SandboxCapabilities(
    isolation="namespaces",
    network_modes=_THROUGH_LINK | _PUBLIC,
    resource_limits=frozenset({"cpu", "output"}),
    users=True,
    freeze="guest",
    kill_all=True,
    doors="tunnel",
    notes={
        "snapshot_levels": "snapshots stay on one host; to branch, run bench there",
        "builds": "build the image on the other host, and name it",
        "resource_limits": "the limits of memory, processes and disk hold there, but a process that"
        " one of them ended is not named",
        "freeze": "the guest stops the processes; grading ends them first",
        "services": "use the docker sandbox on this machine",
    },
)


class SshProvider(RemoteProvider):
    """Sandboxes of a provider on another host, which `ssh` reaches.

    The host is `host`, or else `$BENCHFLOW_REMOTE_HOST`, as ssh takes it. BenchFlow must be
    installed there, for the Python `$BENCHFLOW_REMOTE_PYTHON` (default: python3).
    `$BENCHFLOW_REMOTE_PROVIDER` names the provider there (default: local), and
    `$BENCHFLOW_REMOTE_SSH` the client (default: ssh).
    """

    def __init__(
        self,
        *,
        allow_unisolated: bool = False,  # noqa: ARG002 - never on another host
        host: RemoteHost | str | None = None,
        cloud: SshCloud | None = None,
        lifetime: float = 300.0,
        lost_after: float = 120.0,
    ) -> None:
        if not isinstance(host, RemoteHost):
            host = host_of(os.environ, host)
        if host is None:
            raise UsageError(
                "the sandbox 'remote' needs a host",
                hint="give --sandbox-host user@host, or set BENCHFLOW_REMOTE_HOST",
            )
        self._host = host
        self._ssh = cloud or SshCloud(host)
        super().__init__(
            "remote", self._ssh, CAPABILITIES, lifetime=lifetime, lost_after=lost_after
        )

    async def ready(self) -> None:
        """Check that the host answers.

        Raises:
            CredentialsError: ssh is refused.
            SandboxUnsupportedError: BenchFlow is not installed there, or has another version.
            HostError: The host cannot be reached.
        """
        await self.capabilities()

    async def probe(self) -> SandboxCapabilities:
        """Return what the host's own provider can do through a link. See `ready` for errors."""
        said: Any = await self._ssh.ask({"call": "capabilities"})
        answer = cast("dict[str, Any]", said if isinstance(said, dict) else {})
        if answer.get("version") != VERSION:
            raise SandboxUnsupportedError(
                f"{self._host.name}: BenchFlow there has another protocol",
                hint="install one version of BenchFlow on both hosts",
            )
        try:
            can = SandboxCapabilities.model_validate(answer.get("capabilities"))
        except ValidationError as error:
            raise SandboxError(f"{self._host.name}: {error}") from error
        return _through_link(can)


def _through_link(can: SandboxCapabilities) -> SandboxCapabilities:
    modes = _THROUGH_LINK if "none" in can.network_modes else frozenset[NetworkMode]()
    if "public" in can.network_modes:
        modes |= _PUBLIC
    return CAPABILITIES.model_copy(
        update={
            "isolation": can.isolation,
            "network_modes": modes,
            "resource_limits": can.resource_limits & CAPABILITIES.resource_limits,
        }
    )
