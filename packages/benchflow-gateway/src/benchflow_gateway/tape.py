"""Recorded calls, played back."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchflow_contracts import ModelApi, ModelCall

from .digest import asks_for_tools, request_digest


class DivergedError(Exception):
    """The request is not the one that comes next in the record."""


class Tape:
    """Serves recorded answers up to the point of the fork.

    Calls of the agent's work come in their recorded order; those that ran at the same time
    have none. Those beside it, such as a title, may come at any time before the last of the
    others; one that does not come holds nothing up. Calls that were never answered are left
    out: an agent that tried again gets the answer at its first try.
    """

    def __init__(self, calls: Sequence[ModelCall]) -> None:
        answered = [c for c in calls if c.response is not None and c.status == 200 and not c.error]
        main = [call for call in answered if call.purpose == "main"]
        self._main = main or answered
        self._aux = [call for call in answered if call.purpose == "aux"] if main else []
        self._goes_on = True
        self._digests: dict[str, str] = {}

    @property
    def finished(self) -> bool:
        """Whether later requests go to the upstream."""
        return not self._main

    @property
    def unplayed(self) -> int:
        """Recorded calls of the agent's work that were not taken and had to be.

        After an answer that calls no tool an agent may end, or have more to ask as some do
        beside it: how far it comes until it is ended is chance.
        """
        return len(self._main) if self._goes_on else 0

    def stop(self) -> None:
        """Let every later request go to the upstream."""
        self._main.clear()
        self._aux.clear()

    def take(self, api: ModelApi, request: Mapping[str, Any]) -> ModelCall | None:
        """Return the recorded call that answers `request`, `None` when the tape is over.

        Raises:
            DivergedError: There is a record left, and it is not of this request.
        """
        if self.finished:
            return None
        wanted = request_digest(api, request)
        for call in (*self._next_main(), *self._aux):
            if self._digest(call) == wanted:
                return self._taken(call)
        raise DivergedError(f"not the request of {self._main[0].id!r}")

    def _taken(self, call: ModelCall) -> ModelCall:
        work = any(one is call for one in self._main)
        self._main = [one for one in self._main if one is not call]
        self._aux = [one for one in self._aux if one is not call]
        if work:
            self._goes_on = asks_for_tools(call.response or {})
        return call

    def _next_main(self) -> Sequence[ModelCall]:
        """Return the next call of the work, and those that were made while it ran."""
        first = self._main[0]
        return [call for call in self._main if call is first or _beside(call, first)]

    def _digest(self, call: ModelCall) -> str:
        if call.id not in self._digests:
            self._digests[call.id] = request_digest(call.api, call.request)
        return self._digests[call.id]


def _beside(call: ModelCall, first: ModelCall) -> bool:
    return call.node == first.node and call.started_at < first.finished_at
