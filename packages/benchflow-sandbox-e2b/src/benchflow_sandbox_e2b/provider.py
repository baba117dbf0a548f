"""The provider `e2b`."""

from typing import TYPE_CHECKING, Any, Unpack, get_args

from benchflow_contracts.sandbox import NetworkMode, SandboxCapabilities, SnapshotLevel
from benchflow_sandbox_remote import (
    RemoteOptions,
    RemoteProvider,
    account_file,
    options_of,
)

from .cloud import E2bCloud

if TYPE_CHECKING:
    from .templates import Connection

CAPABILITIES = SandboxCapabilities(
    isolation="vm",
    snapshot_levels=frozenset(get_args(SnapshotLevel)),
    snapshot_consistency="instant",
    live_engine="e2b",
    network_modes=frozenset(get_args(NetworkMode)),
    users=True,
    freeze="guest",
    kill_all=True,
    builds=True,
    doors="tunnel",
    outside_paths=frozenset({"egress", "token"}),
    notes={
        "resource_limits": "CPU and memory are those of the template",
    },
)


class E2bProvider(RemoteProvider):
    """Sandboxes of E2B, or of a server with its API, such as a self-hosted E2B Runtime.

    An image of a spec is a reference to a registry, or `template://NAME` for a template of the
    account. An image, a Dockerfile and the agent's bundles are built into a template once. The key
    and the addresses are those of E2B's SDK: `$E2B_API_KEY`, `$E2B_API_URL`, `$E2B_SANDBOX_URL` and
    `$E2B_DOMAIN`.
    """

    package = "benchflow_sandbox_e2b"
    optional_fields = RemoteProvider.optional_fields | {"bundles"}

    def __init__(
        self,
        *,
        api_key: str | None = None,
        api_url: str | None = None,
        sandbox_url: str | None = None,
        domain: str | None = None,
        **options: Unpack[RemoteOptions],
    ) -> None:
        found: Any = options_of(
            "E2B_", api_key=api_key, api_url=api_url, sandbox_url=sandbox_url, domain=domain
        )
        connection: Connection = found
        account = connection.get("api_key", "")
        locks = account_file("e2b", account).with_suffix(".builds")
        self._account = E2bCloud(connection, locks)
        super().__init__("e2b", self._account, CAPABILITIES, account=account, **options)

    async def ready(self) -> None:
        """Check that E2B answers and accepts the key."""
        await self._account.connect()
