"""What pauses do to rollouts that run: they stand still, or they are saved and end."""

from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
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
class SaveReport:
    """What a pause with `--keep` does to the rollouts that run."""

    saved: int
    """Rollouts that were saved and ended, since the pause."""
    saving: int
    """Rollouts that run until they can be saved."""
    refused: Mapping[str, int]
    """Rollouts that run on, by the reason."""

    def as_fields(self) -> Mapping[str, Any]:
        """Return the fields for the state of the job."""
        return {"saved": self.saved, "saving": self.saving, "running_on": dict(self.refused)}

    def __str__(self) -> str:
        parts = [f"{self.saving} rollouts run until they can be saved"]
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
        self._kept: set[Latch] = set()
        self._saved: set[str] = set()
        """The rollouts that were saved since the first scope was kept."""
        self.on_hold: Callable[[int], None] = _ignore
        """Called with the index of a slot whose time stops."""
        self.on_release: Callable[[int], None] = _ignore
        """Called with the index of a slot whose time continues."""
        self.on_saved: Callable[[int, str], None] = _ignore
        """Called with the index of a slot and its rollout, which is saved and has to end."""

    @contextmanager
    def rollout(self, dispatch: Dispatch) -> Generator[None]:
        """Run the rollout of a dispatch in the block. It begins held if its scope is held."""
        index, switch = dispatch.index, PauseSwitch()
        running = self._running[index] = _Running(switch, self._scopes_of(index))
        if self._is_held(running):
            switch.pause()
        if self._is_kept(running):
            switch.request_save()
        switch.on_saved = partial(self._note_saved, dispatch)
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

    def keep(self, scope: Latch) -> None:
        """Save the rollouts of a scope, also later ones, each at the next state that allows it."""
        if not self._kept:
            self._saved.clear()
        self._kept.add(scope)
        for running in self._running.values():
            if self._is_kept(running):
                running.switch.request_save()

    def release(self, scope: Latch) -> None:
        """Let a scope run. A rollout of another held scope stays held."""
        self._held.discard(scope)
        self._kept.discard(scope)
        self._let_run()

    def release_all(self) -> None:
        """Let every scope run."""
        self._held.clear()
        self._kept.clear()
        self._let_run()

    @property
    def is_active(self) -> bool:
        """Whether a scope is held or kept."""
        return bool(self._held or self._kept)

    def save_report(self, running: int) -> SaveReport:
        """Return what is saved now. `running` is the number of rollouts of the job."""
        if self._refusal is not None:
            return SaveReport(0, 0, {self._refusal: running})
        covered = [each.switch for each in self._running.values() if self._is_kept(each)]
        refused = Counter(s.save_refusal for s in covered if s.save_refusal is not None)
        reasons = {reason or "": count for reason, count in refused.items()}
        saving = sum(switch.wants_save for switch in covered)
        return SaveReport(len(self._saved), saving, reasons)

    def fields(self, running: int) -> Mapping[str, Any]:
        """Return what the state of the job says of the rollouts that ran."""
        fields: dict[str, Any] = {}
        if self._held:
            fields.update(self.report(running).as_fields())
        if self._kept:
            fields.update(self.save_report(running).as_fields())
        return fields

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

    def _let_run(self) -> None:
        for running in self._running.values():
            if not self._is_held(running):
                running.switch.resume()
            if not self._is_kept(running):
                running.switch.cancel_save()

    def _note_saved(self, dispatch: Dispatch) -> None:
        self._saved.add(dispatch.rollout)
        self.on_saved(dispatch.index, dispatch.rollout)

    def _is_kept(self, running: _Running) -> bool:
        return not self._kept.isdisjoint(running.scopes)

    def _is_held(self, running: _Running) -> bool:
        return not self._held.isdisjoint(running.scopes)
