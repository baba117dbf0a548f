"""The slots of a job in schedule order, a few bytes each."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum


class SlotState(IntEnum):
    """What is known of a slot."""

    WAITING = 0
    RUNNING = 1
    DELAYED = 2
    """It waits for the time of its next attempt."""
    COMPLETED = 3
    """It has a score."""
    FAILED = 4
    """It has no score, and no attempt is left."""
    PRUNED = 5
    """Its variant was given up before the slot ran."""

    @property
    def is_resolved(self) -> bool:
        """Whether the slot does not run again by itself."""
        return self >= SlotState.COMPLETED


@dataclass(frozen=True, slots=True)
class VariantPlan:
    """What the scheduler has to know of a variant."""

    name: str
    needs: Mapping[str, int] = field(default_factory=lambda: {"slots": 1})
    """The resources that each of its rollouts holds."""
    endpoint: str | None = None
    """The model endpoint, whose limit and latch its rollouts obey."""
    is_sequential: bool = False
    """Whether its slots run one after the other, because each starts from the one before."""


class Schedule:
    """The variant, the state and the attempts of every slot, by index."""

    def __init__(self, variants: Sequence[VariantPlan]) -> None:
        self.variants = list(variants)
        self._variant = array("H")
        self._state = array("B")
        self._attempts = array("H")
        self._waiting: list[array[int]] = [array("I") for _ in variants]
        """The indexes of each variant's slots, in schedule order."""
        self._cut_short: dict[int, int] = {}
        self._next = [0] * len(self.variants)
        self._left = 0

    def __len__(self) -> int:
        return len(self._variant)

    @property
    def unresolved(self) -> int:
        """The number of slots that are waiting or running."""
        return self._left

    def add_variant(self, variant: VariantPlan) -> int:
        """Add a variant without slots; return its number."""
        self.variants.append(variant)
        self._waiting.append(array("I"))
        self._next.append(0)
        return len(self.variants) - 1

    def add(
        self,
        variant: int,
        *,
        attempts: int = 0,
        cut_short: int = 0,
        state: SlotState = SlotState.WAITING,
    ) -> int:
        """Append a slot and return its index. The other values are those of the record.

        `cut_short` is the number of attempts that the end of an earlier run cut short.
        """
        index = len(self._variant)
        self._variant.append(variant)
        self._state.append(state)
        self._attempts.append(attempts)
        if cut_short:
            self._cut_short[index] = cut_short
        self._waiting[variant].append(index)
        self._left += not state.is_resolved
        return index

    def variant_of(self, index: int) -> int:
        """Return the number of a slot's variant."""
        return self._variant[index]

    def state_of(self, index: int) -> SlotState:
        """Return the state of a slot."""
        return SlotState(self._state[index])

    def attempts_of(self, index: int) -> int:
        """Return how many attempts a slot has had, with those of earlier runs of the job."""
        return self._attempts[index]

    def tries_of(self, index: int) -> int:
        """Return how many attempts count against the slot: those that were not cut short."""
        return self._attempts[index] - self._cut_short.get(index, 0)

    def begin(self, index: int) -> int:
        """Let a waiting slot run; return the number of the attempt."""
        self._state[index] = SlotState.RUNNING
        self._attempts[index] += 1
        return self._attempts[index]

    def put(self, index: int, state: SlotState) -> None:
        """Set the state of a slot. One that waits again is found by `first_waiting`."""
        before = self.state_of(index)
        self._state[index] = state
        self._left += before.is_resolved - state.is_resolved

    def rewind(self, index: int) -> None:
        """Let a slot wait again at its place in the schedule."""
        self.put(index, SlotState.WAITING)
        variant = self._variant[index]
        places = self._waiting[variant]
        low, high = 0, len(places)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if places[middle] < index else (low, middle)
        self._next[variant] = min(self._next[variant], low)

    def repeat(self, index: int) -> None:
        """Let a slot wait again. Its last attempt was cut short, and does not count against it."""
        self._cut_short[index] = self._cut_short.get(index, 0) + 1
        self.rewind(index)

    def first_waiting(self, variant: int) -> int | None:
        """Return the first waiting slot of a variant, or `None`."""
        places, place = self._waiting[variant], self._next[variant]
        while place < len(places) and self._state[places[place]] != SlotState.WAITING:
            place += 1
        self._next[variant] = place
        return places[place] if place < len(places) else None

    def waiting_of(self, variant: int) -> Iterator[int]:
        """Yield the waiting slots of a variant."""
        states = self._state
        return (i for i in self._waiting[variant] if states[i] == SlotState.WAITING)

    def count(self, state: SlotState) -> int:
        """Return the number of slots in a state."""
        return self._state.count(state)
