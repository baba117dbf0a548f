"""The provider `modal`."""

import os
from typing import Unpack

from benchflow_contracts.sandbox import SandboxCapabilities
from benchflow_sandbox_remote import RemoteOptions, RemoteProvider, found_file

KEY = "run `modal token new`, or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"
_FILE = "~/.modal.toml"


class ModalProvider(RemoteProvider):
    """Sandboxes of Modal.

    An image of a spec is a reference to a registry. The token is that of Modal's SDK:
    `$MODAL_TOKEN_ID` and `$MODAL_TOKEN_SECRET`, or the file that `modal token new` writes. The
    sandboxes belong to one app of the account.
    """

    package = "benchflow_sandbox_modal"
    key_hint = KEY

    def __init__(
        self,
        *,
        token_id: str | None = None,
        token_secret: str | None = None,
        app: str = "benchflow",
        **options: Unpack[RemoteOptions],
    ) -> None:
        given = token_id or os.environ.get("MODAL_TOKEN_ID")
        self.check_key("modal", given or found_file("MODAL_CONFIG_PATH", _FILE))
        from .cloud import ModalCloud  # noqa: PLC0415 - it loads the SDK

        self._modal = cloud = ModalCloud(app, token_id, token_secret)
        super().__init__("modal", cloud, account=cloud.account, **options)

    async def probe(self) -> SandboxCapabilities:
        """Take a snapshot of memory, and start a sandbox from it, to learn whether Modal can."""
        self._modal.has_memory = True
        can = await self.prove_live("modal")
        self._modal.has_memory = "live" in can.snapshot_levels
        return can
