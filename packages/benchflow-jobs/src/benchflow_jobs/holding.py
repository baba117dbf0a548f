"""Holds rollouts that run: their sandboxes, their model calls and their time limits stand still."""

from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchflow_contracts import Dispatch
from benchflow_contracts.pausing import PauseSwitch, pausable_by

from .scheduling import Latch


def _ignore(*what: object) -> None:
    del what


@dataclass(frozen=True, slots=True)
class HoldReport:
    """What a pause with `--now` does to the rollouts that run."""

    held: int
    """Rollouts that stand still."""
    freezing: int
    """Rollouts whose sandboxes are not frozen yet."""
    refused: Mapping[str, int]
    """Rollouts that run on, by the reason."""

    def as_fields(self) -> Mapping[str, Any]:
        """Return the fields for the state of the job."""
        return {"held": self.held, "freezing": self.freezing, "running_on": dict(self.refused)}

    def __str__(self) -> str:
        parts = [f"{self.held} rollouts stand still"]
        if self.freezing:
            parts.append(f"{self.freezing} are about to")
        parts += [f"{count} run on: {reason}" for reason, count in self.refused.items()]
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class _Running:
    switch: PauseSwitch
    scopes: Collection[Latch]


class RolloutHolds:
    """Holds the rollouts of some scopes."""

    def __init__(
        self, scopes_of: Callable[[int], Collection[Latch]], refusal: str | None = None
    ) -> None:
        """Prepare the holds.

        Args:
            scopes_of: Returns the scopes of a slot, by its index.
            refusal: The reason why no rollout of this job can be held.
        """
        self._scopes_of = scopes_of
        self._refusal = refusal
        self._running: dict[int, _Running] = {}
        self._held: set[Latch] = set()
        self.on_hold: Callable[[int], None] = _ignore
        """Called with the index of a slot whose time stops."""
        self.on_release: Callable[[int], None] = _ignore
        """Called with the index of a slot whose time continues."""

    @contextmanager
    def rollout(self, dispatch: Dispatch) -> Generator[None]:
        """Run the rollout of a dispatch in the block. It begins held if its scope is held."""
        index, switch = dispatch.index, PauseSwitch()
        running = self._running[index] = _Running(switch, self._scopes_of(index))
        if self._is_held(running):
            switch.pause()
        try:
            with (
                switch.follow(lambda: self.on_hold(index), lambda: self.on_release(index)),
                pausable_by(switch),
            ):
                yield
        finally:
            del self._running[index]

    async def hold(self, scope: Latch) -> None:
        """Hold the rollouts of a scope, also later ones. Wait until their sandboxes are frozen."""
        self._held.add(scope)
        switches = [each.switch for each in self._running.values() if self._is_held(each)]
        for switch in switches:
            switch.pause()
        for switch in switches:
            await switch.wait_settled()

    def release(self, scope: Latch) -> None:
        """End the hold of a scope. A rollout of another held scope stays held."""
        self._held.discard(scope)
        for running in self._running.values():
            if not self._is_held(running):
                running.switch.resume()

    def release_all(self) -> None:
        """End every hold."""
        self._held.clear()
        for running in self._running.values():
            running.switch.resume()

    @property
    def is_active(self) -> bool:
        """Whether a scope is held."""
        return bool(self._held)

    def report(self, running: int) -> HoldReport:
        """Return what stands still now. `running` is the number of rollouts of the job."""
        if self._refusal is not None:
            return HoldReport(0, 0, {self._refusal: running})
        covered = [each.switch for each in self._running.values() if self._is_held(each)]
        paused = [switch for switch in covered if switch.is_paused]
        held = sum(switch.is_settled for switch in paused)
        refused = Counter(switch.refusal for switch in covered if not switch.is_paused)
        reasons = {reason or "": count for reason, count in refused.items()}
        return HoldReport(held, len(paused) - held, reasons)

    def _is_held(self, running: _Running) -> bool:
        return not self._held.isdisjoint(running.scopes)
