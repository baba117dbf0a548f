"""The concurrency of model endpoints, by what each endpoint bears."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from benchflow_contracts import UpstreamAnswer

from .scheduler import Action, Scheduler

THROTTLING: Final = frozenset({429, 503, 529})
"""Too many requests, or an overloaded endpoint."""
SHRINK_PAUSE_SEC: Final = 15


@dataclass(slots=True)
class ModelLimit:
    """Additive increase, multiplicative decrease, as inspect_ai's adaptive connections.

    The limit counts rollouts. It shrinks to 80 % when the endpoint throttles, at most once in 15
    seconds or in the time that the endpoint asks for. It grows by 5 % after each clean round. A
    round is as many answers as the limit. It is clean if no answer throttled, and counts only if at
    least 80 % of the limit was in use.
    """

    limit: float
    _answers: int = 0
    _highest: int = 0
    _shrinks_from: float = float("-inf")

    def succeeded(self, running: int, most: int) -> None:
        """Count an answer while `running` rollouts run. The limit does not exceed `most`."""
        self._answers += 1
        self._highest = max(self._highest, running)
        if self._answers < self.limit:
            return
        if self._highest >= 0.8 * self.allowed:
            self.limit = min(most, self.limit * 1.05)
        self._answers = self._highest = 0

    def throttled(self, now: float, retry_after: float | None = None) -> None:
        """Count an answer that throttles at `now`, in monotonic seconds."""
        self._answers = self._highest = 0
        if now < self._shrinks_from:
            return
        self._shrinks_from = now + max(SHRINK_PAUSE_SEC, min(retry_after or 0, 60))
        self.limit = max(1, self.limit * 0.8)

    @property
    def allowed(self) -> int:
        """The rollouts that may run at once."""
        return int(self.limit)


@dataclass(slots=True)
class ModelLimits:
    """Sets the scheduler's limits of model endpoints by the answers of the endpoints.

    An endpoint has no limit before it throttles for the first time. Then its limit begins with the
    rollouts that run. `slots` is the upper bound.
    """

    scheduler: Scheduler
    fixed: set[str] = field(default_factory=set[str])
    """Endpoints whose limit people have set."""
    on_change: Callable[[str, int], None] = lambda _url, _limit: None
    """Called with an endpoint and its new limit."""
    _limits: dict[str, ModelLimit] = field(default_factory=dict[str, ModelLimit])

    def note(self, answer: UpstreamAnswer, now: float) -> list[Action]:
        """Count an answer at `now`, in monotonic seconds; return what the driver has to do."""
        url, running = answer.url, self.scheduler.running_on(answer.url)
        limit = self._limits.get(url)
        if url in self.fixed:
            return []
        if answer.status in THROTTLING:
            limit = limit or self._limits.setdefault(url, ModelLimit(max(1, running)))
            limit.throttled(now, answer.retry_after)
        elif limit is not None and answer.status == 200:
            limit.succeeded(running, self.scheduler.limits.get("slots", running + 1))
        if limit is None or limit.allowed == self.scheduler.model_limits.get(url):
            return []
        actions = self.scheduler.set_limits(now, model_limits={url: limit.allowed})
        self.on_change(url, limit.allowed)
        return actions
