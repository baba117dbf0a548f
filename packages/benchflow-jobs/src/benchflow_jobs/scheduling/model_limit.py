"""The concurrency of a model endpoint, by what the endpoint bears."""

from dataclasses import dataclass


@dataclass(slots=True)
class ModelLimit:
    """Additive increase, multiplicative decrease, as inspect_ai's adaptive connections.

    The limit doubles after each clean round until the endpoint first answers 429. From then on it
    grows by 5 % a clean round, and shrinks to 80 % at a 429, at most once in 15 seconds. A round is
    as many calls as the limit; it is clean without a 429, and counts only if at least 80 % of the
    limit was in use.
    """

    least: int = 10
    most: int = 100
    limit: float = 20
    has_met_429: bool = False
    _calls: int = 0
    _highest: int = 0
    _shrunk_at: float | None = None

    def succeeded(self, in_use: int) -> None:
        """Count a call that was answered while `in_use` calls ran."""
        self._calls += 1
        self._highest = max(self._highest, in_use)
        if self._calls < self.limit:
            return
        if self._highest >= 0.8 * self.limit:
            self.limit = min(self.most, self.limit * (1.05 if self.has_met_429 else 2))
        self._calls = self._highest = 0

    def throttled(self, now: float) -> None:
        """Count a 429 at `now`, in monotonic seconds."""
        self.has_met_429 = True
        self._calls = self._highest = 0
        if self._shrunk_at is not None and now - self._shrunk_at < 15:
            return
        self._shrunk_at = now
        self.limit = max(self.least, self.limit * 0.8)

    @property
    def allowed(self) -> int:
        """The calls that may run at once."""
        return int(self.limit)
