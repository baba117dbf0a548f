"""A rollout of the service in memory, and the queue of those that wait."""

import asyncio
import time
from bisect import bisect_left, insort
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from benchflow_contracts import BenchFlowError, RareModel, Task, UsageReported
from benchflow_contracts.pausing import PauseSwitch
from benchflow_serve_client import ModelEndpoint, Outcome, RolloutRequest, RolloutStatus
from pydantic import SecretStr

from .caps import SpendingTracker
from .model_source import ModelUse

Stop = Literal["none", "cancel", "drop", "park"]
"""Why a running rollout is to end: by a client, by its policy, or to be parked."""

Kept = Literal["none", "tree", "checkpoint"]


class SavedRollout(RareModel):
    """A rollout as its row in the database has it. The key of an endpoint is left out."""

    status: RolloutStatus
    request: RolloutRequest
    needs_key: bool = False
    """Whether the request had a key for its endpoint."""
    attempts: tuple[str, ...] = ()
    """The directories of its attempts, the last one last."""
    resumes: str | None = None
    """The attempt whose rest runs next."""
    group_version: str | None = None
    """The policy version of its group."""
    stop: Stop = "none"
    keeps: Kept = "tree"
    reruns: bool = False
    """Whether it runs again if a killed server has left no checkpoint of it."""
    acknowledged_at: float | None = None
    inline_task: str | None = None
    """The directory of the request's own task."""
    is_tied: bool = False
    """Whether its client waits on a connection to the server, and cannot ask for it again."""


@dataclass(slots=True)
class Entry:
    """One rollout. Only the service changes it."""

    seq: int
    saved: SavedRollout
    key: SecretStr | None = None
    """The key of the request's endpoint, in memory alone."""
    loaded_task: Task | None = None
    use: ModelUse | None = None
    """The model of the rollout, from its place in the queue to its end."""
    last_event: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced, at each event."""
    task: asyncio.Task[None] | None = None
    """Runs the rollout."""
    switch: PauseSwitch | None = None
    """Saves the rollout while it runs."""
    spending: SpendingTracker | None = None
    """What its run has used."""
    failure: BenchFlowError | None = None
    """Why its run is cut."""
    is_saved: bool = False
    """Whether the rollout that runs is saved, and only has to end."""

    @property
    def id(self) -> str:
        """The id of the rollout."""
        return self.saved.status.id

    @property
    def status(self) -> RolloutStatus:
        """The state, without the position in the queue."""
        return self.saved.status

    @property
    def request(self) -> RolloutRequest:
        """The request, without the key of its endpoint."""
        return self.saved.request

    @property
    def endpoint(self) -> ModelEndpoint | None:
        """The endpoint of the request, with its key."""
        endpoint = self.request.endpoint
        return None if endpoint is None else endpoint.model_copy(update={"api_key": self.key})

    @property
    def is_stopping(self) -> bool:
        """Whether the end of the rollout was requested."""
        return self.saved.stop in {"cancel", "drop"}

    @property
    def lacks_key(self) -> bool:
        """Whether a restart lost the key of the endpoint."""
        return self.saved.needs_key and self.key is None

    def update(self, **fields: Any) -> None:  # noqa: ANN401 - fields of SavedRollout
        """Change fields of the saved state."""
        self.saved = self.saved.model_copy(update=fields)

    def set_status(self, **fields: Any) -> None:  # noqa: ANN401 - fields of RolloutStatus
        """Change fields of the status."""
        self.update(status=self.status.model_copy(update=fields))

    def spend(self, event: UsageReported) -> None:
        """Count a model call. End the run if its budget is used up."""
        if self.spending is None or self.task is None or self.failure is not None:
            return
        if (failure := self.spending.add(event)) is not None:
            self.failure = failure
            self.task.cancel()

    def wake(self) -> None:
        """Wake all that wait for a change."""
        self.changed.set()
        self.changed = asyncio.Event()

    def dump(self) -> str:
        """Return the row of the database."""
        return self.saved.model_dump_json(exclude_defaults=True)


@contextmanager
def unchanged_on_error(entry: Entry) -> Generator[None]:
    """Leave a rollout as it was, if the block fails."""
    before = entry.saved, entry.last_event
    try:
        yield
    except BaseException:
        entry.saved, entry.last_event = before
        raise


def without_key(request: RolloutRequest) -> tuple[RolloutRequest, SecretStr | None]:
    """Return a request without the key of its endpoint, and the key."""
    if request.endpoint is None or request.endpoint.api_key is None:
        return request, None
    endpoint = request.endpoint.model_copy(update={"api_key": None})
    return request.model_copy(update={"endpoint": endpoint}), request.endpoint.api_key


class RolloutQueue:
    """The rollouts that wait: a greater priority first, then the older one."""

    def __init__(self) -> None:
        self._order: list[tuple[int, int]] = []
        """The places in the order, as `_place` returns them."""
        self._entries: dict[int, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def push(self, entry: Entry) -> None:
        """Add a rollout. A resumed one keeps its old place in the order."""
        if entry.seq not in self._entries:
            self._entries[entry.seq] = entry
            insort(self._order, _place(entry))

    def pop(self) -> Entry | None:
        """Take the next rollout, or return None."""
        if not self._order:
            return None
        _, seq = self._order.pop(0)
        return self._entries.pop(seq)

    def remove(self, entry: Entry) -> bool:
        """Take a rollout out of the queue. Return whether it waited."""
        if self._entries.pop(entry.seq, None) is None:
            return False
        del self._order[bisect_left(self._order, _place(entry))]
        return True

    def position(self, entry: Entry) -> int | None:
        """Return the number of rollouts before this one; None outside the queue."""
        return bisect_left(self._order, _place(entry)) if entry.seq in self._entries else None


def _place(entry: Entry) -> tuple[int, int]:
    return -entry.request.priority, entry.seq


class TokenRate:
    """Sampled tokens per second over the last minute."""

    _WINDOW_SEC: Final = 60.0

    def __init__(self) -> None:
        self._seconds: dict[int, int] = {}

    def add(self, tokens: int) -> None:
        """Count tokens that were sampled now."""
        now = int(time.monotonic())
        self._seconds[now] = self._seconds.get(now, 0) + tokens
        for second in [s for s in self._seconds if s < now - self._WINDOW_SEC]:
            del self._seconds[second]

    def per_second(self) -> float | None:
        """Return the rate; None if no tokens were counted in the last minute."""
        now = time.monotonic()
        counts = [n for second, n in self._seconds.items() if second >= now - self._WINDOW_SEC]
        return sum(counts) / self._WINDOW_SEC if counts else None


def outcome_of(stop: Stop) -> Outcome:
    """Return the outcome of a rollout that was stopped."""
    return "dropped" if stop == "drop" else "cancelled"


def versions_after(entry: Entry, version: str) -> dict[str, Any]:
    """Return the fields of a status whose next calls go to a policy version."""
    status = entry.status
    versions = status.policy_versions
    if not versions or versions[-1] != version:
        versions = (*versions, version)
    return {"started_version": status.started_version or version, "policy_versions": versions}
