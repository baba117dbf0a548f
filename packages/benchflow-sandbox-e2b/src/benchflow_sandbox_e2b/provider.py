"""The provider `e2b`."""

from typing import Unpack

from benchflow_sandbox_remote import RemoteOptions, RemoteProvider, account_file, options_of

KEY = "set E2B_API_KEY to a valid key of your account"


class E2bProvider(RemoteProvider):
    """Sandboxes of E2B, or of a server with its API, such as a self-hosted E2B Runtime.

    An image of a spec is a reference to a registry, or `template://NAME` for a template of the
    account. An image, a Dockerfile and the agent's bundles are built into a template once. The key
    and the addresses are those of E2B's SDK: `$E2B_API_KEY`, `$E2B_API_URL`, `$E2B_SANDBOX_URL` and
    `$E2B_DOMAIN`.
    """

    package = "benchflow_sandbox_e2b"
    key_hint = KEY
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
        connection = options_of(
            "E2B_", api_key=api_key, api_url=api_url, sandbox_url=sandbox_url, domain=domain
        )
        self.check_key("e2b", key := connection.get("api_key", ""))
        from .cloud import E2bCloud  # noqa: PLC0415 - it loads the SDK

        cloud = E2bCloud(connection, account_file("e2b", key).with_suffix(".builds"))
        super().__init__("e2b", cloud, account=key, **options)
