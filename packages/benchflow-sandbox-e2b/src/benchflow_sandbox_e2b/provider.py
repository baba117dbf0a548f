"""The provider `e2b`."""

import os
from typing import Literal, get_args

from benchflow_contracts.errors import CredentialsError
from benchflow_contracts.sandbox import NetworkMode, SandboxCapabilities
from benchflow_sandbox_remote import RemoteProvider

from .cloud import Connection, E2bCloud

_OPTIONS: dict[Literal["api_key", "api_url", "sandbox_url", "domain"], str] = {
    "api_key": "E2B_API_KEY",
    "api_url": "E2B_API_URL",
    "sandbox_url": "E2B_SANDBOX_URL",
    "domain": "E2B_DOMAIN",
}
CAPABILITIES = SandboxCapabilities(
    isolation="vm",
    network_modes=frozenset(get_args(NetworkMode)),
    users=True,
    freeze="guest",
    kill_all=True,
    doors="tunnel",
    notes={
        "snapshot_levels": "BenchFlow does not use E2B's snapshots yet; branch by replay",
        "builds": "build a template with E2B's tools, and name it as the image",
        "resource_limits": "CPU and memory are those of the template",
    },
)


class E2bProvider(RemoteProvider):
    """Sandboxes of E2B, or of a server with its API, such as a self-hosted E2B Runtime.

    An image of a spec is the name of a template. The key and the addresses are those of E2B's SDK:
    `$E2B_API_KEY`, `$E2B_API_URL`, `$E2B_SANDBOX_URL` and `$E2B_DOMAIN`.
    """

    def __init__(
        self,
        *,
        allow_unisolated: bool = False,  # noqa: ARG002 - a machine of E2B is always isolated
        api_key: str | None = None,
        api_url: str | None = None,
        sandbox_url: str | None = None,
        domain: str | None = None,
        lifetime: float = 300.0,
        lost_after: float = 120.0,
    ) -> None:
        given = {
            "api_key": api_key,
            "api_url": api_url,
            "sandbox_url": sandbox_url,
            "domain": domain,
        }
        connection = Connection()
        for name, variable in _OPTIONS.items():
            if value := given[name] or os.environ.get(variable):
                connection[name] = value
        self._has_key = "api_key" in connection
        super().__init__(
            "e2b", E2bCloud(connection), CAPABILITIES, lifetime=lifetime, lost_after=lost_after
        )

    async def ready(self) -> None:
        """Check that there is a key.

        Raises:
            CredentialsError: There is none.
        """
        if not self._has_key:
            raise CredentialsError("E2B: no key", hint="set E2B_API_KEY to the key of your account")
