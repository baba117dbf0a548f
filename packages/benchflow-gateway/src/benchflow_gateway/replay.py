"""Replay of recorded calls."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchflow_contracts import ModelApi, ModelCall

from .digest import asks_for_tools, request_digest


class DivergedError(Exception):
    """The request differs from the next recorded request."""


class Replay:
    """Answers requests from recorded calls, until the recorded work is repeated.

    Main calls (the agent's work) are expected in their recorded order, except calls that ran at
    the same time. After an answer without a tool call the turn may be over. Some agents then
    send further calls; their number and order vary. A record may begin with such calls.

    Auxiliary calls, such as a request for a title, may come at any time before the last main
    call, or not at all. An auxiliary request that is not in the record goes to the upstream:
    a resumed agent may ask whether its model exists. If its answer changes the work, the next
    main requests show that. Calls without an answer are left out: an agent that retried a call
    gets the answer at the first try.
    """

    def __init__(self, calls: Sequence[ModelCall]) -> None:
        usable = [c for c in calls if c.response is not None and c.status == 200 and not c.error]
        main = [call for call in usable if call.purpose == "main"]
        self._ahead = main or usable
        self._skipped: list[ModelCall] = []
        self._aux = [call for call in usable if call.purpose == "aux"] if main else []
        self._tools = self._ahead[0].request.get("tools") if self._ahead else None
        self._work_continues = True
        self._has_started = False
        self._digests: dict[str, str] = {}

    @property
    def finished(self) -> bool:
        """Whether later requests go to the upstream."""
        return not self._ahead

    @property
    def unplayed(self) -> int:
        """The number of recorded calls of the agent's work that were not repeated."""
        return len(self._ahead) if self._work_continues else 0

    def stop(self) -> None:
        """Send every later request to the upstream."""
        self._ahead.clear()
        self._skipped.clear()
        self._aux.clear()

    def take(self, api: ModelApi, request: Mapping[str, Any]) -> ModelCall | None:
        """Return the recorded call that answers `request`; `None` if the upstream must answer.

        Raises:
            DivergedError: No recorded call that may come next has this request.
        """
        if self.finished:
            return None
        digest = request_digest(api, request)
        first = self._ahead[0]
        for at, call in enumerate(self._ahead):
            if (self._may_skip(at) or _overlaps(call, first)) and self._digest(call) == digest:
                self._has_started = True
                return self._pop(at)
        for others in (self._skipped, self._aux):
            for at, call in enumerate(others):
                if self._digest(call) == digest:
                    return others.pop(at)
        if self._tools and not request.get("tools"):
            return None
        raise DivergedError(f"the request differs from the recorded request of {first.id!r}")

    def _may_skip(self, at: int) -> bool:
        """Return whether the recorded calls before index `at` are optional, or may come later."""
        if not self._work_continues:
            return True
        ahead = self._ahead[:at]
        if self._has_started:
            return not ahead
        return not any(asks_for_tools(call.response or {}) for call in ahead)

    def _pop(self, at: int) -> ModelCall:
        call = self._ahead.pop(at)
        before = self._ahead[:at]
        self._skipped += [other for other in before if not _overlaps(call, other)]
        self._ahead[:at] = [other for other in before if _overlaps(call, other)]
        # Only a call with the work's own tools shows the progress of the work.
        if call.request.get("tools") == self._tools:
            self._work_continues = asks_for_tools(call.response or {})
        return call

    def _digest(self, call: ModelCall) -> str:
        if call.id not in self._digests:
            self._digests[call.id] = request_digest(call.api, call.request)
        return self._digests[call.id]


def _overlaps(call: ModelCall, first: ModelCall) -> bool:
    return call.node == first.node and call.started_at < first.finished_at
