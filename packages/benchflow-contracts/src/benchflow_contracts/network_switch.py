"""A sandbox that is moved between the phases of a task while it runs."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from .sandbox import NetworkMode


@runtime_checkable
class SupportsNetworkSwitch(Protocol):
    """What a sandbox can do whose network and default user change while it runs.

    Processes go on, and `spec` tells what holds now; `restore` keeps it.
    """

    async def switch_network(self, mode: NetworkMode, allowed_hosts: Sequence[str] = ()) -> None:
        """Let the inside reach what `mode` says, and nothing else, from the return on.

        `mode` is one of the spec's `switches`, or its network of now. What the new network
        forbids is cut, open connections too; the loopback, services beside it and whatever
        the host asks of the inside stay. Processes that ran before may not find a way that
        is new. When it fails, less may be reached than before, and never more.

        Raises:
            SandboxUnsupportedError: The spec does not name the mode; all is as it was.
            UsageError: The hosts are none, or mean nothing in this mode; all is as it was.
            SandboxError: It failed.
        """
        ...

    async def switch_user(self, user: str) -> None:
        """Let commands and processes that name no user run as `user` from now on.

        Raises:
            SandboxError: There is no such user inside; none is made, and all is as it was.
        """
        ...
