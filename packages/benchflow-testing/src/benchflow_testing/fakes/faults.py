"""Fault injection for the fakes."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

Fault = BaseException | type[BaseException]


@dataclass(slots=True)
class FakeFaults:
    """The operations of a fake that fail or hang, by method name. Tests change it.

    `faults.fail_on["create"] = SandboxError("x")` makes an operation fail. Deleting the key
    makes it succeed again.
    """

    fail_on: dict[str, Fault] = field(default_factory=dict[str, Fault])
    """The errors, which are raised at the start of every call of the operation."""
    after: dict[str, int] = field(default_factory=dict[str, int])
    """The number of calls of an operation that succeed before its error in `fail_on`."""
    hang_on: set[str] = field(default_factory=set[str])
    """The operations that wait until they are cancelled."""

    @classmethod
    def of(cls, fail_on: Mapping[str, Fault] | None, hang_on: set[str] | None) -> "FakeFaults":
        """Return faults from a fake's constructor arguments."""
        return cls(fail_on=dict(fail_on or {}), hang_on=set(hang_on or ()))

    async def raise_or_hang(self, operation: str) -> None:
        """Raise or hang if the test set this for `operation`."""
        if operation in self.hang_on:
            await asyncio.Event().wait()
        self.raise_fault(operation)

    def raise_fault(self, operation: str) -> None:
        """Raise if the test set an error for `operation`, which need not be a coroutine."""
        fault = self.fail_on.get(operation)
        if fault is None:
            return
        if self.after.get(operation):
            self.after[operation] -= 1
            return
        raise fault
