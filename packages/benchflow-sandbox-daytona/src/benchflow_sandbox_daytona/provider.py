"""The providers `daytona` and `daytona-vm`."""

from typing import get_args

from benchflow_contracts.sandbox import NetworkMode, SandboxCapabilities
from benchflow_sandbox_remote import CloudTerms, RemoteProvider, load_terms, options_of
from benchflow_sandbox_remote.provider import OWNER

from .cloud import DaytonaCloud

_FREEZE = "root inside can undo a freeze by the guest; grade in another sandbox (hermetic)"
CONTAINER = SandboxCapabilities(
    isolation="container",
    network_modes=frozenset(get_args(NetworkMode)),
    users=True,
    freeze="guest",
    kill_all=True,
    doors="tunnel",
    outside_paths=frozenset({"egress", "token"}),
    notes={
        "snapshot_levels": "containers of Daytona cannot be forked; branch by replay",
        "freeze": _FREEZE,
        "builds": "run `daytona snapshot create NAME -f Dockerfile`; the image is snapshot://NAME",
        "resource_limits": "Daytona rounds CPU, memory and disk of an image up to whole units",
    },
)
_MACHINE_NOTES = {
    "snapshot_levels": "it is not proven whether a fork keeps the memory; branch by replay",
    "freeze": _FREEZE,
    "builds": "a virtual machine needs an existing VM snapshot; use --sandbox daytona",
    "resource_limits": "CPU, memory and disk are those of the snapshot",
}
MACHINE = CONTAINER.model_copy(update={"isolation": "vm", "notes": _MACHINE_NOTES})


class DaytonaProvider(RemoteProvider):
    """Containers of Daytona.

    An image of a spec is a reference that Daytona can pull, or `snapshot://NAME`. The key, the
    address and the region are `$DAYTONA_API_KEY`, `$DAYTONA_API_URL` and `$DAYTONA_TARGET`.
    """

    registry_name, offered = "daytona", CONTAINER

    def __init__(
        self,
        *,
        allow_unisolated: bool = False,  # noqa: ARG002 - a sandbox of Daytona is isolated
        api_key: str | None = None,
        api_url: str | None = None,
        target: str | None = None,
        lifetime: float = 300.0,
        lost_after: float = 120.0,
        terms: CloudTerms | None = None,
    ) -> None:
        self._config = options_of("DAYTONA_", api_key=api_key, api_url=api_url, target=target)
        super().__init__(
            self.registry_name,
            DaytonaCloud(self._config, vm=self.offered is MACHINE),
            self.offered,
            lifetime=lifetime,
            lost_after=lost_after,
            terms=terms or load_terms(self.registry_name, "benchflow_sandbox_daytona"),
            account=self._config.get("api_key", ""),
        )

    async def ready(self) -> None:
        """Check that Daytona answers and accepts the key."""
        # The caller may use another event loop afterwards.
        account = DaytonaCloud(self._config, vm=False)
        try:
            async for _ in account.list(OWNER):
                break
        finally:
            await account.aclose()


class DaytonaVmProvider(DaytonaProvider):
    """Virtual machines of Daytona. An image of a spec is the name of a VM snapshot."""

    registry_name, offered = "daytona-vm", MACHINE
