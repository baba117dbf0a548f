"""What a local sandbox needs of whatever runs its processes."""

import socket
from typing import Protocol

from benchflow_sandbox_core.running_box import RunningBox

from .accounts import AccountBook


class Body(RunningBox, Protocol):
    """One life of a local sandbox."""

    root: int
    """A descriptor of the root directory."""
    netns: int
    """A descriptor of the network namespace; -1 for the host's."""
    listener: socket.socket | None
    """The relay's, until it is taken."""
    accounts: AccountBook

    @property
    def pid(self) -> int:
        """The first process's number on the host; 0 when there is none."""
        ...

    async def ended(self) -> None:
        """Return when the first process is dead."""
        ...

    def close(self) -> None:
        """Let go. Idempotent."""
        ...
