"""The events of a rollout that the record of its job keeps."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from benchflow_contracts import (
    AttemptEvent,
    Branched,
    Event,
    NodeFailed,
    NodeScored,
    NodeValued,
    PhaseEntered,
    RolloutFinished,
    RolloutStarted,
    StoreError,
)
from benchflow_store import StoredRollout
from pydantic import JsonValue

MOST_EVENTS: Final = 200
OMITTED: Final = "events_omitted"
"""The kind of a last event that says how many more there were."""
_KEPT: Final = frozenset(
    {
        "rollout_started",
        "phase_entered",
        "branched",
        "node_scored",
        "node_valued",
        "node_failed",
        "rollout_finished",
    }
)
_MOST_CHARS: Final = 200
"""Of each text. JSON needs at most six bytes for a character, so an event has less than 4 kB."""


class EventCollector:
    """Collects the events of a rollout while it runs."""

    def __init__(self) -> None:
        self._first: list[Event] = []
        self._last: Event | None = None
        self._omitted = 0

    def receive(self, event: Event) -> None:
        """Take an event of the rollout."""
        if event.kind == "rollout_finished":
            self._last = event
        elif event.kind in _KEPT and len(self._first) < MOST_EVENTS - 1:
            self._first.append(event)
        elif event.kind in _KEPT:
            self._omitted += 1

    def events(self) -> tuple[AttemptEvent, ...]:
        """Return the events with their small fields."""
        chosen = self._first if self._last is None else [*self._first, self._last]
        events = [AttemptEvent(kind=each.kind, ts=each.ts, data=_data(each)) for each in chosen]
        if self._omitted:
            count = {"count": self._omitted}
            events.append(AttemptEvent(kind=OMITTED, ts=events[-1].ts, data=count))
        return tuple(events)


def events_of(log: Iterable[Event]) -> tuple[AttemptEvent, ...]:
    """Return the events of a log that the record keeps."""
    collector = EventCollector()
    for event in log:
        collector.receive(event)
    return collector.events()


def stored_events(directory: Path) -> tuple[AttemptEvent, ...]:
    """Return the events in the directory of a rollout; none if its log cannot be read."""
    with suppress(StoreError):
        return events_of(StoredRollout(directory).log.events)
    return ()


def _data(event: Event) -> dict[str, JsonValue]:
    fields = _fields(event)
    return {k: v[:_MOST_CHARS] if isinstance(v, str) else v for k, v in fields.items()}


def _fields(event: Event) -> dict[str, Any]:
    match event:
        case RolloutStarted():
            return {"task": event.task_id, "root": event.root}
        case PhaseEntered():
            return {"node": event.node, "phase": event.phase}
        case Branched():
            return {"node": event.node, **event.record.model_dump(mode="json")}
        case NodeScored(result=result):
            scored = {"node": event.node, "name": event.name, "reward": result.reward}
            return {**scored, "space": result.space, "error_type": result.error_type}
        case NodeValued():
            return {"node": event.node, **event.value.model_dump(mode="json")}
        case NodeFailed(error=error):
            failed = {"node": event.node, "boundary": error.boundary, "type": error.type}
            return {**failed, "message": error.message, "caused_by": error.caused_by}
        case RolloutFinished():
            return {"status": event.status}
        case _:
            return {}
