"""The time that a fork costs its children, from the times of events."""

from typing import Final

from benchflow_contracts import Branched, PhaseEntered, StepFinished

_PARTS: Final = (
    ("restore", "start", "provision"),
    ("ready", "provision", "connect"),
    ("connect", "connect", "execute"),
)
"""Each interval, with the phase that begins it and the phase that ends it."""


class ForkTimes:
    """Collects the times at which the worlds of a rollout entered their phases."""

    def __init__(self) -> None:
        self._entered: dict[str, dict[str, float]] = {}
        self._branched: dict[str, float] = {}
        self._stepped: dict[str, float] = {}

    def entered(self, event: PhaseEntered) -> None:
        """Record the first time of a phase of a world."""
        self._entered.setdefault(event.node, {}).setdefault(event.phase, event.ts)

    def branched(self, event: Branched) -> None:
        """Record the last time at which a node was forked."""
        self._branched[event.node] = event.ts

    def stepped(self, event: StepFinished) -> dict[str, float]:
        """Return the seconds of the world whose first step is this one, else nothing."""
        self._stepped[event.node] = event.ts
        phases = self._entered.get(event.node)
        if phases is None or "execute" not in phases:
            return {}
        took = {
            name: phases[until] - phases[since]
            for name, since, until in _PARTS
            if since in phases and until in phases
        }
        if event.parent in self._branched and "setup" in phases:
            took["waited"] = phases["setup"] - self._branched[event.parent]
        took["first_step"] = event.ts - phases["execute"]
        if event.parent in self._stepped:
            took["until_running"] = phases["execute"] - self._stepped[event.parent]
        return {name: round(seconds, 6) for name, seconds in took.items()}
