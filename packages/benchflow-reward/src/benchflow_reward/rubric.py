"""Rubric: several rewards, one verdict."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from benchflow_contracts import (
    BenchFlowError,
    Evidence,
    Reward,
    RewardEvent,
    RolloutNode,
    UsageError,
    VerifyResult,
    caused_outside,
    needs_processes,
    stops_processes,
)

Aggregate = Literal["mean", "min"]
MAX_WEIGHT: Final = 1e9
"""The largest weight of a criterion. The weighted sum of rewards is then a finite number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rubric:
    """The weighted mean, or the least, of its criteria.

    Guarantees: when any criterion of weight > 0 is unscored or fails, the whole is
    unscored, never 0. A criterion of weight 0 is measured beside the verdict and
    cannot break it. `items` holds each scored criterion by name; the events of all
    are kept in order. Criteria are scored one after another, as listed.
    """

    criteria: Sequence[tuple[Reward, float]]
    aggregate: Aggregate = "mean"
    name: str = "reward"

    def __post_init__(self) -> None:
        names = [criterion.name for criterion, _ in self.criteria]
        if len(set(names)) != len(names):
            raise UsageError(f"two criteria of {self.name!r} have one name: {sorted(names)!r}")
        weights = [weight for _, weight in self.criteria]
        if not all(0 <= weight <= MAX_WEIGHT for weight in weights):
            raise UsageError(f"{self.name!r}: each weight is between 0 and {MAX_WEIGHT:g}")
        if not any(weights):
            raise UsageError(f"{self.name!r} has no criterion with a weight above 0")

    async def score(self, node: RolloutNode, evidence: Evidence) -> VerifyResult:
        """Score every criterion. A failed one makes the result unscored, with its cause."""
        scored: list[tuple[float, float]] = []
        items: dict[str, float] = {}
        events: list[RewardEvent] = []
        errors: dict[str, str] = {}
        fatal: list[VerifyResult] = []
        for index, (criterion, weight) in enumerate(self.criteria):
            result = await _try(criterion, node, self._evidence(evidence, index))
            events.extend(result.events)
            if result.reward is None:
                errors[criterion.name] = result.error or "unscored"
                fatal += [result] if weight > 0 else []
                continue
            items[criterion.name] = result.reward
            if weight > 0:
                scored.append((result.reward, weight))
        meta = {"aggregate": self.aggregate, "unscored": errors}
        if not fatal:
            reward = self._combine(scored)
            return VerifyResult(reward=reward, items=items, events=tuple(events), meta=meta)
        needed = [c.name for c, weight in self.criteria if weight > 0 and c.name in errors]
        # A temporary failure or a job that must stop stays one inside a rubric.
        causes = [result.cause for result in fatal if result.cause is not None]
        cause = max(causes, key=lambda each: each.stops_job, default=None)
        stops_job = cause is not None and cause.stops_job
        return VerifyResult(
            reward=None,
            items=items,
            events=tuple(events),
            error="; ".join(f"criterion {name!r}: {errors[name]}" for name in needed),
            retryable=all(result.retryable for result in fatal) and not stops_job,
            cause=cause,
            meta=meta,
        )

    @property
    def needs_processes(self) -> bool:
        """Whether any criterion needs the processes of the sandbox."""
        return any(needs_processes(criterion) for criterion, _ in self.criteria)

    @property
    def stops_processes(self) -> bool:
        """Whether any criterion reads files while no process runs."""
        return any(stops_processes(criterion) for criterion, _ in self.criteria)

    def _evidence(self, evidence: Evidence, index: int) -> Evidence:
        """Return the evidence for one criterion: later ones may need the processes."""
        world = evidence.world
        if world is None or not world.may_end_processes:
            return evidence
        later = any(needs_processes(criterion) for criterion, _ in self.criteria[index + 1 :])
        return replace(evidence, world=replace(world, may_end_processes=not later))

    def _combine(self, scored: list[tuple[float, float]]) -> float:
        if self.aggregate == "min":
            return min(value for value, _ in scored)
        total = math.fsum(weight for _, weight in scored)
        return math.fsum(value * weight for value, weight in scored) / total


async def _try(criterion: Reward, node: RolloutNode, evidence: Evidence) -> VerifyResult:
    try:
        return await criterion.score(node, evidence)
    except BenchFlowError as error:
        if caused_outside(error):
            raise
        return VerifyResult.unscored(str(error), retryable=error.retryable)
