"""Attribute failures to one boundary, set deadlines, and finish work despite cancellation."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import AsyncExitStack, contextmanager
from types import MappingProxyType, TracebackType
from typing import Any, Literal, TypeVar, cast

from benchflow_contracts import (
    AgentError,
    AgentTimeoutError,
    BenchFlowError,
    Boundary,
    Cause,
    EnvironmentError_,
    HostError,
    ManifestError,
    NodeError,
    RewardError,
    SandboxError,
    SandboxTimeoutError,
    SnapshotError,
    StoreError,
    TaskError,
    UsageError,
    blame,
    caused_outside,
    host_error,
    host_is_short,
)
from benchflow_contracts.pausing import running_timeout

T = TypeVar("T")

_ERRORS: Mapping[Boundary, type[BenchFlowError]] = MappingProxyType(
    {
        "usage": UsageError,
        "task": TaskError,
        "manifest": ManifestError,
        "sandbox": SandboxError,
        "agent": AgentError,
        "environment": EnvironmentError_,
        "reward": RewardError,
        "snapshot": SnapshotError,
        "store": StoreError,
        "internal": BenchFlowError,
    }
)


TimedBoundary = Literal["sandbox", "agent", "environment", "snapshot"]

_LATE: dict[TimedBoundary, type[BenchFlowError]] = {
    "sandbox": SandboxTimeoutError,
    "agent": AgentTimeoutError,
    "environment": EnvironmentError_,
    "snapshot": SnapshotError,
}


@contextmanager
def boundary(name: Boundary) -> Generator[None, None, None]:
    """Attribute failures of the block to the boundary `name`.

    A plain exception of an extension is wrapped into the boundary's error, with its
    type and text; a shortage of the host becomes a `HostError`. A BenchFlowError knows its own
    boundary and passes unchanged, as does cancellation.
    """
    try:
        yield
    except BenchFlowError:
        raise
    except Exception as error:
        raise classify(error, name) from error


def classify(error: Exception, name: Boundary) -> BenchFlowError:
    """Return `error` as a BenchFlowError.

    For a group, return its first error. Prefer an error that the host or the operator caused.
    """
    leaves = _leaves(error)
    known = [leaf for leaf in leaves if isinstance(leaf, BenchFlowError)]
    if known:
        return next((leaf for leaf in known if caused_outside(leaf)), known[0])
    first = next((leaf for leaf in leaves if host_is_short(leaf)), leaves[0])
    if host_is_short(first):
        work = "run the rollout" if name == "internal" else f"continue with the {name}"
        return host_error(work, first)
    return _ERRORS[name](f"{type(first).__name__}: {first}")


def node_error(error: BenchFlowError, cause: Cause | None = None) -> NodeError:
    """Return `error`, with its cause, as the record that goes into the tree.

    Without a cause, no agent has run. An error by a shortage of the host may be retried.
    """
    cause = cause or blame(error, inside="task")
    is_short = cause.is_temporary and not isinstance(error, StoreError)
    # The remedy for a shortage of the host differs from the one for a defective sandbox.
    has_default_hint = is_short and error.hint in {
        SandboxError.default_hint,
        BenchFlowError.default_hint,
    }
    return NodeError(
        boundary=error.boundary,
        type=type(error).__name__,
        message=str(error),
        hint=HostError.default_hint if has_default_hint else error.hint,
        retryable=(error.retryable or is_short) and not cause.stops_job,
        retry_after=cause.retry_after,
        stops_job=cause.stops_job,
        caused_by=cause.by,
    )


class within:  # noqa: N801 - used only in `async with` statements
    """Limit the block to `seconds`; attribute its failures and the timeout to a boundary.

    Time in which the rollout is paused does not count. At the deadline the block is cancelled, and
    the boundary's timeout error names `work`. A TimeoutError that the block itself raises is an
    ordinary failure.
    """

    __slots__ = ("_boundary", "_scope", "_seconds", "_work")

    def __init__(self, seconds: float, boundary: TimedBoundary, work: str) -> None:
        self._seconds = seconds
        self._boundary: TimedBoundary = boundary
        self._work = work
        self._scope = running_timeout(seconds)

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
                f"{self._work} did not end within {self._seconds:g} s",
                hint="raise the deadline, or find the cause of the delay",
                retryable=True,
            ) from error
        if isinstance(error, Exception) and not isinstance(error, BenchFlowError):
            raise classify(error, self._boundary) from error


async def run_shielded(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end and return its result.

    A cancellation that arrives meanwhile is raised after `work` has ended.
    `work` must be bounded by a deadline of its own.
    """
    # A TaskGroup would cancel the task; this frame owns it and returns after its end.
    return await _wait_to_end(asyncio.get_running_loop().create_task(work))


def start_shielded(work: Coroutine[Any, Any, None], owner: AsyncExitStack) -> None:
    """Start `work` in the background, shielded; `owner` is not closed before its end."""
    owner.push_async_callback(_wait_to_end, asyncio.get_running_loop().create_task(work))


async def _wait_to_end(task: asyncio.Task[T]) -> T:
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()


async def run_beside_check(
    check: Awaitable[None], work: Callable[[], Awaitable[None]] | None
) -> None:
    """Run `work` and its precondition `check` at the same time; `None` means no work.

    If the check fails, or the caller is cancelled, the work is cancelled and has ended
    before this raises. A failure of the work is raised only after the check succeeds. If the
    precondition does not hold, that failure means nothing.

    Raises:
        BenchFlowError: The error of the check, else the error of the work.
    """
    if work is None:
        await check
        return
    with boundary("internal"):
        async with asyncio.TaskGroup() as group:
            running = group.create_task(_failure(work))
            await check
        failure = running.result()
        if failure is not None:
            raise failure


async def _failure(work: Callable[[], Awaitable[None]]) -> BenchFlowError | None:
    try:
        await work()
    except BenchFlowError as error:
        return error
    return None


def _leaves(error: Exception) -> list[Exception]:
    if isinstance(error, ExceptionGroup):
        group = cast("ExceptionGroup[Exception]", error)
        return [leaf for inner in group.exceptions for leaf in _leaves(inner)]
    return [error]
