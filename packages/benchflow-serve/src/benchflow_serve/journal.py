"""The journal of rollouts: it records their states and events, also over a full disk."""

import logging
import time
from typing import Any

from benchflow_contracts import StoreError
from benchflow_serve_client import RolloutEvent

from .entries import Entry
from .store import ServiceStore

_logger = logging.getLogger(__name__)


class RolloutJournal:
    """Writes what happens to rollouts into the database, in its order.

    What happens to a rollout that runs cannot be undone. So what the disk refuses stays in memory,
    and `catch_up` writes it later. Followers of the rollout see an event when it is written.
    """

    def __init__(self, store: ServiceStore) -> None:
        self._store = store
        self._late: dict[str, tuple[Entry, list[RolloutEvent]]] = {}
        self.is_failing = False
        """Whether the last write failed. Nothing is to start then."""

    def event(self, entry: Entry, kind: Any, **fields: Any) -> RolloutEvent:  # noqa: ANN401
        """Return the next event of a rollout."""
        entry.last_event += 1
        return RolloutEvent(id=entry.last_event, kind=kind, at=time.time(), **fields)

    def record(self, entry: Entry, kind: str, **fields: Any) -> None:  # noqa: ANN401
        """Record the state of a rollout with a new event; later, if the disk is full."""
        _, events = self._late.setdefault(entry.id, (entry, []))
        events.append(self.event(entry, kind, **fields))
        self._write(entry.id)

    def add_event(self, entry: Entry, kind: str, **fields: Any) -> None:  # noqa: ANN401
        """Record an event that leaves the state as it is recorded; later, if the disk is full."""
        if entry.id in self._late:
            self.record(entry, kind, **fields)
            return
        event = self.event(entry, kind, **fields)
        try:
            self._store.add_event(entry.id, event)
        except StoreError as error:
            self._late[entry.id] = entry, [event]
            self._note(error)
        else:
            entry.wake()

    def save(self, entry: Entry) -> None:
        """Record the state of a rollout; later, if the disk is full."""
        self._late.setdefault(entry.id, (entry, []))
        self._write(entry.id)

    def begin(self, entry: Entry, **fields: Any) -> bool:  # noqa: ANN401
        """Record that a rollout runs. Return whether it may: the record has to be durable."""
        event = self.event(entry, "running", **fields)
        try:
            self._store.save(entry.id, entry.dump(), (event,))
        except StoreError as error:
            entry.last_event -= 1
            self._note(error)
            return False
        entry.wake()
        return True

    def catch_up(self) -> None:
        """Write what the disk refused before."""
        self.is_failing = False
        for ident in list(self._late):
            if not self._write(ident):
                return

    def forget(self, entry: Entry) -> None:
        """Write nothing more of a rollout that is deleted."""
        self._late.pop(entry.id, None)

    def _write(self, ident: str) -> bool:
        entry, events = self._late[ident]
        try:
            self._store.save(ident, entry.dump(), events)
        except StoreError as error:
            self._note(error)
            return False
        del self._late[ident]
        entry.wake()
        return True

    def _note(self, error: StoreError) -> None:
        if not self.is_failing:
            _logger.error("nothing starts until the database can be written: %s", error)
        self.is_failing = True
