"""The provider `modal`."""

from typing import Unpack

from benchflow_sandbox_remote import RemoteOptions, RemoteProvider

from .cloud import ModalCloud
from .errors import KEY


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
        cloud = ModalCloud(app, token_id, token_secret)
        super().__init__("modal", cloud, account=cloud.account, **options)
