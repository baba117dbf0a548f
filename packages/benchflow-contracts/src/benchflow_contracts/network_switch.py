"""A sandbox whose network and default user change between the phases of a task."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from .sandbox import NetworkMode


@runtime_checkable
class SupportsNetworkSwitch(Protocol):
    """A sandbox whose network and default user can change while it runs.

    Processes continue. `spec` has the current values, and `restore` keeps them.
    """

    async def switch_network(self, mode: NetworkMode, allowed_hosts: Sequence[str] = ()) -> None:
        """Switch the network to `mode`. On return, the inside reaches nothing that it forbids.

        `mode` is one of the spec's `switches`, or its current network. Connections that the new
        network forbids are cut. The loopback, services beside the sandbox and connections from the
        host stay. Processes that ran before may be unable to use a newly allowed address. After an
        error, the inside may reach less than before, but never more.

        Raises:
            SandboxUnsupportedError: The spec does not name the mode; nothing changed.
            UsageError: The hosts are invalid, or this mode does not use hosts; nothing changed.
            SandboxError: It failed.
        """
        ...

    async def switch_user(self, user: str) -> None:
        """Set the default user of later commands and processes.

        Raises:
            SandboxError: The user does not exist inside; nothing changed.
        """
        ...
