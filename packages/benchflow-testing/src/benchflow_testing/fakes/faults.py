"""Fault injection for the fakes."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

Fault = BaseException | type[BaseException]


@dataclass(slots=True)
class FakeFaults:
    """Which operations of a fake fail or hang, by method name. Mutable on purpose.

    A test breaks an operation with `faults.fail_on["create"] = SandboxError("x")`
    and heals it by deleting the key.
    """

    fail_on: dict[str, Fault] = field(default_factory=dict[str, Fault])
    """Raised at the start of the operation, every time."""
    after: dict[str, int] = field(default_factory=dict[str, int])
    """How many calls of an operation succeed before `fail_on` holds for it."""
    hang_on: set[str] = field(default_factory=set[str])
    """The operation waits until it is cancelled."""

    @classmethod
    def of(cls, fail_on: Mapping[str, Fault] | None, hang_on: set[str] | None) -> "FakeFaults":
        """Return faults from a fake's constructor arguments."""
        return cls(fail_on=dict(fail_on or {}), hang_on=set(hang_on or ()))

    async def strike(self, operation: str) -> None:
        """Fail or hang when `operation` is to; else return at once."""
        if operation in self.hang_on:
            await asyncio.Event().wait()
        self.strike_now(operation)

    def strike_now(self, operation: str) -> None:
        """Fail when `operation` is to. For operations that are not coroutines."""
        fault = self.fail_on.get(operation)
        if fault is None:
            return
        if self.after.get(operation):
            self.after[operation] -= 1
            return
        raise fault
