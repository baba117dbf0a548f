"""The cost and the time of a rollout, measured over the ended rollouts of a job."""

from dataclasses import dataclass
from typing import Final

from benchflow_dashboard.index.database import IndexSession
from benchflow_dashboard.pages.format import duration, money

_MEANS: Final = (
    "SELECT AVG(cost), COUNT(cost), AVG(seconds), COUNT(seconds) FROM runs WHERE job = ? "
    "AND (? = '' OR task = ?) AND status NOT IN ('running', 'unfinished', 'cancelled')"
)

_FORKED: Final = (
    "SELECT name FROM runs WHERE job = ? AND branches > 0 AND has_files ORDER BY finished DESC, "
    "name LIMIT 1"
)


@dataclass(frozen=True, slots=True)
class RolloutEstimate:
    """The means over ended rollouts. `None` is unknown, never 0."""

    cost: float | None = None
    """US dollars."""
    costs: int = 0
    """The number of rollouts with a known cost."""
    seconds: float | None = None
    times: int = 0
    """The number of rollouts with a known time."""
    scope: str = "this job"

    def cost_of(self, rollouts: int) -> str:
        """Return the cost of so many rollouts in words, with its basis."""
        if self.cost is None:
            return f"cost unknown: no rollout of {self.scope} reported a cost"
        basis = f"mean {money(self.cost)} over {self.costs} rollouts of {self.scope}"
        return f"about {money(self.cost * rollouts)} ({basis})"

    def time_of(self, rollouts: int, at_once: int | None = None) -> str:
        """Return the time of so many rollouts in words, `at_once` beside each other."""
        if self.seconds is None:
            return f"time unknown: no rollout of {self.scope} has ended"
        rounds = -(-rollouts // at_once) if at_once else 1
        basis = f"mean {duration(self.seconds)} over {self.times} rollouts of {self.scope}"
        each = "" if at_once or rollouts < 2 else " each"
        return f"about {duration(self.seconds * rounds)}{each} ({basis})"


def estimate(session: IndexSession, job: str, task: str | None = None) -> RolloutEstimate:
    """Return the means over the ended rollouts of a job, or of one task in it."""
    # One constant query: an empty task stands for every task.
    rows = session.rows(_MEANS, [job, task or "", task or ""])
    place = "this job" if job else "this directory"
    cost, costs, seconds, times = rows[0]
    scope = place if task is None else f"this task in {place}"
    return RolloutEstimate(cost, costs, seconds, times, scope)


def newest_fork(session: IndexSession, job: str) -> str | None:
    """Return the id of the newest rollout of a job that forked, if its files are here."""
    rows = session.rows(_FORKED, [job])
    return str(rows[0][0]) if rows else None
