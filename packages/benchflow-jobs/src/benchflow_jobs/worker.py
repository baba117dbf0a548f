"""How a worker runs one attempt."""

from collections.abc import Callable

from benchflow_contracts import (
    BenchFlowError,
    Completion,
    Dispatch,
    Event,
    Executor,
    NodeError,
)


async def run_attempt(
    executor: Executor, dispatch: Dispatch, on_event: Callable[[Event], None]
) -> Completion:
    """Run one dispatch. A defect of the executor gives an unscored completion.

    Raises:
        asyncio.CancelledError: The attempt was cancelled, and is torn down.
    """
    try:
        completion = await executor.run(dispatch, on_event)
    except Exception as error:  # noqa: BLE001 - a defect of one executor ends one attempt
        return _unscored(dispatch, type(error).__name__, str(error))
    if _identity(completion) != _identity(dispatch):
        message = f"the executor returned a completion of slot {completion.slot!r}, attempt "
        message += f"{completion.attempt}, for slot {dispatch.slot!r}, attempt {dispatch.attempt}"
        return _unscored(dispatch, "WrongCompletionError", message)
    return completion


def failure_of(error: BenchFlowError) -> NodeError:
    """Return the error of an attempt that ran nothing."""
    return NodeError(
        boundary=error.boundary,
        type=type(error).__name__,
        message=str(error),
        hint=error.hint,
        retryable=error.retryable,
        stops_job=error.stops_job,
    )


def _identity(each: Dispatch | Completion) -> tuple[object, ...]:
    return each.job, each.index, each.slot, each.attempt, each.epoch, each.rollout


def _unscored(dispatch: Dispatch, kind: str, message: str) -> Completion:
    error = NodeError(
        boundary="internal",
        type=kind,
        message=message,
        hint="run again with --debug and report the traceback",
    )
    return Completion.of(dispatch, "unscored", error=error)
