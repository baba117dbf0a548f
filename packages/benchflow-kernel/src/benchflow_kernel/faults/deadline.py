"""Run a phase with a deadline and a boundary."""

import asyncio
from types import TracebackType
from typing import Literal

from benchflow_contracts import (
    AgentTimeoutError,
    BenchFlowError,
    EnvironmentError_,
    SandboxTimeoutError,
    SnapshotError,
)

from .boundary import classify

Guarded = Literal["sandbox", "agent", "environment", "snapshot"]

_LATE: dict[Guarded, type[BenchFlowError]] = {
    "sandbox": SandboxTimeoutError,
    "agent": AgentTimeoutError,
    "environment": EnvironmentError_,
    "snapshot": SnapshotError,
}


class within:  # noqa: N801 - reads as the statement that it is
    """Limit the block to `seconds`; attribute failures and the timeout to a boundary.

    At the deadline the block is cancelled, and the boundary's timeout error names `what`. A
    TimeoutError that the block itself raises is an ordinary failure.
    """

    __slots__ = ("_boundary", "_scope", "_seconds", "_what")

    def __init__(self, seconds: float, boundary: Guarded, what: str) -> None:
        self._seconds = seconds
        self._boundary: Guarded = boundary
        self._what = what
        self._scope = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._scope.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._scope.__aexit__(kind, error, traceback)
        except TimeoutError:
            raise _LATE[self._boundary](
                f"{self._what} did not end within {self._seconds:g} s",
                hint="raise the deadline, or find the cause of the delay",
                retryable=True,
            ) from error
        if isinstance(error, Exception) and not isinstance(error, BenchFlowError):
            raise classify(error, self._boundary) from error
