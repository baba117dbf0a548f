"""The resources of a worker, and the dispatches that hold them."""

import asyncio
from collections import Counter
from collections.abc import Mapping

from .errors import CapacityError
from .job import Completion, Dispatch


class Room:
    """The resources of one worker or of all, and the dispatches that wait for them."""

    def __init__(self, capacity: Mapping[str, int], owner: str = "this machine") -> None:
        """Begin with `capacity`. `owner` names its holder in error messages."""
        self.capacity = dict(capacity)
        self._owner = owner
        self.is_closed = False
        self._used = Counter[str]()
        self._changed = asyncio.Event()

    @property
    def load(self) -> float:
        """The part of the slots that is in use."""
        return self._used["slots"] / max(1, self.capacity.get("slots", 1))

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

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def attempt_key(each: Dispatch | Completion) -> str:
    """Return the key of an attempt: slot, attempt and epoch. A driver hands each one out once."""
    return f"{each.index}/{each.attempt}/{each.epoch}"
