"""The provider `modal`."""

from typing import Unpack

from benchflow_sandbox_remote import LINK_CAPABILITIES, RemoteOptions, RemoteProvider

from .cloud import ModalCloud

CAPABILITIES = LINK_CAPABILITIES.model_copy(
    update={
        "snapshot_levels": frozenset({"filesystem"}),
        "snapshot_consistency": "instant",
        "outside_paths": frozenset({"egress"}),
        "egress_networks": frozenset({"public"}),
        "notes": {
            **LINK_CAPABILITIES.notes,
            "live": "Modal gives snapshots of memory to some accounts only, and nothing here has"
            " proven them; branch by state, or by replay in the middle of a turn",
            "egress": "Modal adds headers only with the network 'public'; use --model-access"
            " tunnel, or a task with this network",
            "token": "the network is not opened for one host yet; use --model-access tunnel, or"
            " a task with the network 'public'",
            "builds": "build the image elsewhere, and push it to a registry",
            "resource_limits": "Modal gets the CPU and memory of the task as request and limit,"
            " which nothing here has shown; it has no limits of processes and disk",
            "network_switch": "choose the network of the whole rollout before it starts",
            "lifetime": "Modal ends a sandbox after 24 h; lower the time limits of a longer task",
        },
    }
)


class ModalProvider(RemoteProvider):
    """Sandboxes of Modal.

    An image of a spec is a reference to a registry. The token is that of Modal's SDK:
    `$MODAL_TOKEN_ID` and `$MODAL_TOKEN_SECRET`, or the file that `modal token new` writes. The
    sandboxes belong to one app of the account.
    """

    package = "benchflow_sandbox_modal"

    def __init__(
        self,
        *,
        token_id: str | None = None,
        token_secret: str | None = None,
        app: str = "benchflow",
        **options: Unpack[RemoteOptions],
    ) -> None:
        self._account = ModalCloud(app, token_id, token_secret)
        account = self._account.token_id
        super().__init__("modal", self._account, CAPABILITIES, account=account, **options)

    async def ready(self) -> None:
        """Check the token by a call of the account; see `ModalCloud.connect`."""
        await self._account.connect()
