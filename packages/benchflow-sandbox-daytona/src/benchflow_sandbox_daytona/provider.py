"""The providers `daytona` and `daytona-vm`."""

from typing import Unpack

from benchflow_sandbox_remote import RemoteOptions, RemoteProvider, options_of

from .cloud import DaytonaCloud
from .errors import KEY


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
        cloud = DaytonaCloud(config, vm=self.registry_name == "daytona-vm")
        account = config.get("api_key", "")
        super().__init__(self.registry_name, cloud, account=account, **options)


class DaytonaVmProvider(DaytonaProvider):
    """Virtual machines of Daytona. An image of a spec is the name of a VM snapshot."""

    registry_name = "daytona-vm"
