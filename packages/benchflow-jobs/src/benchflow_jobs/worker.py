"""The parts of a worker: the resources that attempts hold, and how one attempt runs."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping

from benchflow_contracts import (
    BenchFlowError,
    CapacityError,
    Completion,
    Dispatch,
    Event,
    Executor,
    NodeError,
)


class Room:
    """The resources of one worker or of all, and the dispatches that wait for them."""

    def __init__(self, capacity: Mapping[str, int], owner: str = "this machine") -> None:
        """Begin with `capacity`. `owner` names its holder in error messages."""
        self.capacity = dict(capacity)
        self._owner = owner
        self.is_closed = False
        self._used = Counter[str]()
        self._changed = asyncio.Event()

    async def take(self, dispatch: Dispatch) -> None:
        """Wait until the resources of a dispatch are free, and take them.

        Raises:
            CapacityError: There will never be enough of them.
        """
        while True:
            if reason := self.refusal(dispatch):
                raise CapacityError(reason)
            if self.fits(dispatch):
                break
            await self._changed.wait()
        self.hold(dispatch)

    def hold(self, dispatch: Dispatch) -> None:
        """Take the resources of a dispatch, which must be free."""
        self._used.update(dispatch.needs)

    def fits(self, dispatch: Dispatch) -> bool:
        """Return whether the resources of a dispatch are free. One without a limit always is."""
        capacity, used = self.capacity, self._used
        return all(
            name not in capacity or used[name] + amount <= capacity[name]
            for name, amount in dispatch.needs.items()
        )

    def give_back(self, dispatch: Dispatch) -> None:
        """Free the resources of a dispatch."""
        self._used.subtract(dispatch.needs)
        self._wake()

    def resize(self, capacity: Mapping[str, int]) -> None:
        """Set resources. What holds more than that keeps them."""
        self.capacity.update(capacity)
        self._wake()

    def close(self) -> None:
        """Refuse each dispatch from now on, also those that wait."""
        self.is_closed = True
        self._wake()

    def refusal(self, dispatch: Dispatch) -> str | None:
        """Return why a dispatch can never have what it needs, or `None`."""
        if self.is_closed:
            return f"slot {dispatch.slot!r} cannot start: the backend is closed"
        for name, amount in dispatch.needs.items():
            most = self.capacity.get(name, amount)
            if amount > most:
                needs = f"slot {dispatch.slot!r} needs {amount} of {name!r}"
                return f"{needs}, and {self._owner} has {most}"
        return None

    def held(self, name: str) -> int:
        """Return how much of a resource is in use."""
        return self._used[name]

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


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
