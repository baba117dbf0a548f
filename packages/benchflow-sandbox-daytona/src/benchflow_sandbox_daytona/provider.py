"""The providers `daytona` and `daytona-vm`."""

from typing import Unpack

from benchflow_sandbox_remote import RemoteOptions, RemoteProvider, options_of

KEY = "set DAYTONA_API_KEY to a key that may write and delete sandboxes"


class DaytonaProvider(RemoteProvider):
    """Containers of Daytona.

    An image of a spec is a reference that Daytona can pull, or `snapshot://NAME`. The key, the
    address and the region are `$DAYTONA_API_KEY`, `$DAYTONA_API_URL` and `$DAYTONA_TARGET`.
    """

    package, key_hint, registry_name = "benchflow_sandbox_daytona", KEY, "daytona"

    def __init__(
        self,
        *,
        api_key: str | None = None,
        api_url: str | None = None,
        target: str | None = None,
        **options: Unpack[RemoteOptions],
    ) -> None:
        config = options_of("DAYTONA_", api_key=api_key, api_url=api_url, target=target)
        self.check_key(name := self.registry_name, key := config.get("api_key", ""))
        from .cloud import DaytonaCloud  # noqa: PLC0415 - it loads the SDK

        cloud = DaytonaCloud(config, vm=name == "daytona-vm")
        super().__init__(name, cloud, account=key, **options)


class DaytonaVmProvider(DaytonaProvider):
    """Virtual machines of Daytona. An image of a spec is the name of a VM snapshot."""

    registry_name = "daytona-vm"
