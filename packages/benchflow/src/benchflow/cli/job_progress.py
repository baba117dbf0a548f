"""What a listener knows of a job: counts, rewards, durations and limits, with estimates."""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from benchflow_contracts import Completion, RolloutRecord
from benchflow_kernel.resolve import to_json

from . import format as fmt

if TYPE_CHECKING:
    from benchflow_analysis.statistics import MeanEstimate
    from benchflow_jobs.job_record import JobLimits
    from benchflow_store import RolloutProgress
    from benchflow_store.database import PlannedSlot

_LEAST = 3
"""Rollouts that must have ended before their durations say something about the rest."""
_FRESH_SEC = 1.0


class Row:
    """One running rollout."""

    def __init__(self, slot: "PlannedSlot", now: float) -> None:
        self.slot = slot
        self.started_at = now

    @cached_property
    def progress(self) -> "RolloutProgress":
        """What the rollout does, by its events. Only a live table folds them."""
        from benchflow_store import RolloutProgress

        return RolloutProgress()


class ProgressTracker:
    """The state of a job, from the calls of a JobListener."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.job: str | None = None
        """The name of the job, once the job is planned."""
        self.total = 0
        self.done = 0
        self.running: dict[str, Row] = {}
        self.limits: JobLimits | None = None
        self.errors: Counter[str] = Counter()
        """Attempts without a score in this run, by the boundary of their error."""
        self._began = clock()
        self._durations: list[float] = []
        self._most_at_once = 1
        self._rewards: dict[str, dict[str, list[float]]] = {}
        self._means: tuple[float, dict[str, MeanEstimate]] = (-math.inf, {})

    def planned(
        self, job: str, slots: "Sequence[PlannedSlot]", rewards: Mapping[int, float]
    ) -> None:
        """Set the name and the size of the job, and what earlier runs finished."""
        self.job, self.total, self.done = job, len(slots), len(rewards)
        self._began = self.clock()
        for index, reward in rewards.items():
            self._add_reward(slots[index], reward)

    def limited(self, limits: "JobLimits") -> list[str]:
        """Set the limits in force. Return what has changed, in words."""
        changes = _changes(self.limits, limits)
        self.limits = limits
        self._most_at_once = len(self.running)
        return changes

    def started(self, slot: "PlannedSlot") -> Row:
        """Add a running rollout."""
        row = self.running[slot.name] = Row(slot, self.clock())
        self._most_at_once = max(self._most_at_once, len(self.running))
        return row

    def attempted(self, completion: Completion) -> None:
        """Count what an attempt used, and its error."""
        if self.limits is not None:
            self.limits.budget.add(completion.measured)
        if completion.status != "scored":
            error = completion.error
            self.errors[completion.status if error is None else error.boundary] += 1

    def finished(self, slot: "PlannedSlot", record: RolloutRecord) -> float:
        """Count a rollout that does not run again. Return its seconds."""
        row = self.running.pop(slot.name, None)
        self.done += 1
        reward = record.counted_reward()
        if reward is not None:
            self._add_reward(slot, reward)
        seconds = self.clock() - row.started_at if row else 0.0
        self._durations.append(seconds)
        return seconds

    def rate(self) -> float | None:
        """Return the rollouts of this run that end in a second, `None` below three."""
        elapsed = self.clock() - self._began
        return len(self._durations) / elapsed if self._is_known and elapsed > 0 else None

    def eta(self) -> tuple[float, float] | None:
        """Return the seconds to the end of the job, and how far off they may be.

        Both come from the durations of the rollouts that ended and from the concurrency in force.
        The second value is two standard errors of the sum of the durations that are left. There
        is no estimate before three rollouts have ended, in a pause and at the end.
        """
        left = self.total - self.done
        if not self._is_known or left <= 0 or self.is_held:
            return None
        durations = list(self._durations)
        mean, count = fmean(durations), len(durations)
        now = self.clock()
        spent = sum(min(now - row.started_at, mean) for row in list(self.running.values()))
        at_once = max(1, min(self.concurrency, left))
        error = 2 * stdev(durations) * math.sqrt(left + left * left / count)
        return max(left * mean - spent, 0) / at_once, error / at_once

    @property
    def concurrency(self) -> int:
        """Rollouts that run at once under the limits in force."""
        slots = self._most_at_once if self.limits is None else self.limits.resources["slots"]
        # Memory and endpoints may allow fewer rollouts than `slots`.
        return min(slots, self._most_at_once)

    @property
    def is_held(self) -> bool:
        """Whether nothing more starts now."""
        limits = self.limits
        return limits is not None and (bool(limits.ending) or "the job" in limits.pauses)

    def means(self) -> Mapping[str, "MeanEstimate"]:
        """Return the mean reward with its interval, by variant. It may be a second old."""
        at, means = self._means
        if self.clock() - at >= _FRESH_SEC:
            # Its import takes a while, and `bench --help` needs none of it.
            from benchflow_analysis.statistics.estimates import mean_estimate

            found = {each: mean_estimate(dict(by)) for each, by in list(self._rewards.items())}
            means = {each: mean for each, mean in found.items() if mean is not None}
            self._means = (self.clock(), means)
        return means

    @property
    def _is_known(self) -> bool:
        return len(self._durations) >= _LEAST

    def _add_reward(self, slot: "PlannedSlot", reward: float) -> None:
        self._rewards.setdefault(slot.variant, {}).setdefault(slot.task, []).append(reward)


def summary(progress: ProgressTracker) -> list[str]:
    """Return the numbers of a job for people, the most important first."""
    from benchflow_store.progress import span

    parts: list[str] = []
    rate, eta = progress.rate(), progress.eta()
    if rate is not None:
        parts.append(f"{rate * 60:.1f}/min" if rate * 60 >= 1 else f"{rate * 3600:.1f}/h")
    if eta is not None:
        parts.append(f"ETA {span(eta[0])} ± {span(eta[1])}")
    means = progress.means()
    for variant, mean in means.items():
        name = "reward" if len(means) == 1 else variant
        between = mean.interval
        bounds = f" [{between.low:.2f}, {between.high:.2f}]" if between else ""
        parts.append(f"{name} {mean.mean:.2f}{bounds}")
    if progress.errors:
        counts = (f"{name} {count}" for name, count in progress.errors.most_common())
        parts.append(f"errors: {', '.join(counts)}")
    limits = progress.limits
    return parts if limits is None else [*parts, *_spent(limits), *in_force(limits)]


def in_force(limits: "JobLimits") -> list[str]:
    """Return the limits, and why something does not start."""
    return [
        *_numbers(limits),
        *(_paused(scope, reason) for scope, reason in sorted(limits.pauses.items())),
        *([f"nothing more starts: {limits.ending}"] if limits.ending else []),
    ]


def _numbers(limits: "JobLimits") -> list[str]:
    named = {"slots": "{} at once", "builds": "{} builds at once", "memory_mb": "{} MB at once"}
    parts = [named[key].format(value) for key, value in limits.resources.items() if key in named]
    for url, limit in limits.endpoints.items():
        why = ", which throttles" if url in limits.throttled else ""
        parts.append(f"{limit} at {to_json(url, 'base_url')}{why}")
    return parts


def _spent(limits: "JobLimits") -> list[str]:
    """Return what was used, and what is left of the budget."""
    budget = limits.budget
    parts: list[str] = []
    if budget.used_usd or budget.cost_usd is not None:
        left = "" if budget.cost_usd is None else f" of {budget.cost_usd:g}"
        parts.append(f"{budget.used_usd:.4g}{left} USD")
    if budget.used_tokens or budget.tokens is not None:
        left = "" if budget.tokens is None else f" of {fmt.count(budget.tokens)}"
        parts.append(f"{fmt.count(budget.used_tokens)}{left} tokens")
    return parts


def _paused(scope: str, reason: str) -> str:
    return f"paused {scope}: {reason}" if reason else f"paused {scope}"


def _changes(before: "JobLimits | None", now: "JobLimits") -> list[str]:
    if before is None:
        return [_paused(scope, reason) for scope, reason in sorted(now.pauses.items())]
    new = sorted(now.pauses.items() - before.pauses.items())
    lines = [_paused(scope, reason) for scope, reason in new]
    lines += [f"resumed {scope}" for scope in sorted(before.pauses.keys() - now.pauses.keys())]
    if _is_other(before, now):
        lines.append(f"limits: {', '.join([*_numbers(now), *_spent(now)])}")
    if now.ending != before.ending:
        lines.append(f"nothing more starts: {now.ending}")
    return lines


def _is_other(before: "JobLimits", now: "JobLimits") -> bool:
    """Return whether limits have changed. A throttled endpoint that recovers is not news."""
    endpoints = {
        url: limit
        for url, limit in now.endpoints.items()
        if url not in now.throttled or limit < before.endpoints.get(url, limit + 1)
    }
    return (
        before.resources != now.resources
        or any(before.endpoints.get(url) != limit for url, limit in endpoints.items())
        or (before.budget.cost_usd, before.budget.tokens)
        != (now.budget.cost_usd, now.budget.tokens)
    )
