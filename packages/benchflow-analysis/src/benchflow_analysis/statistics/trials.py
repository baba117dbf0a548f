"""Trials: the resolved slots of a job, and what they say besides their rewards."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from benchflow_contracts import Model

from .estimates import TaskRewards

TrialStatus = Literal["completed", "failed", "skipped_pruned"]


@dataclass(frozen=True, slots=True)
class Trial:
    """One resolved slot. The last five fields differ between two runs of one seed."""

    job: str
    index: int
    slot: str
    variant: str
    task: str
    repeat: int
    attempt: int
    status: TrialStatus
    reward: float | None
    """A rollout that was tampered with counts as 0."""
    scored: bool
    value: float | None = None
    """V of the root."""
    leaves: int = 1
    tampered: int = 0
    """Verdicts that the agent may have steered."""
    error_boundary: str | None = None
    error_type: str | None = None
    fingerprint: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    cost_usd: float | None = None
    rollout_id: str | None = None
    epoch: str | None = None
    started_at: float | None = None
    finished_at: float | None = None
    seconds: float | None = None


class Failures(Model):
    """The unscored trials with one cause."""

    fingerprint: str
    error_boundary: str
    error_type: str
    trials: int
    tasks: int
    example: str
    """A rollout with this failure."""


class Spending(Model):
    """Cost and tokens of a variant. A sum leaves out the trials where it is not known."""

    tokens_in: int | None
    tokens_out: int | None
    cost_usd: float | None
    unknown_tokens: int
    """Trials without known tokens."""
    unknown_cost: int
    """Trials without a known cost."""
    cost_per_pass: float | None
    """Over the trials with a known cost; `None` if none of them passed."""
    seconds: float | None
    """The mean time of a trial."""


def scored_rewards(trials: Iterable[Trial]) -> TaskRewards:
    """Return the rewards of the scored trials by task, in the order of the repeats."""
    rewards: dict[str, list[float]] = {}
    for trial in sorted(trials, key=lambda trial: (trial.task, trial.repeat, trial.index)):
        if trial.reward is not None:
            rewards.setdefault(trial.task, []).append(trial.reward)
    return rewards


def group_failures(trials: Iterable[Trial]) -> tuple[Failures, ...]:
    """Group the unscored trials by fingerprint, the most frequent first."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.reward is None and trial.status != "skipped_pruned":
            groups.setdefault(_fingerprint(trial), []).append(trial)
    found = [
        Failures(
            fingerprint=fingerprint,
            error_boundary=group[0].error_boundary or _UNKNOWN,
            error_type=group[0].error_type or _UNKNOWN,
            trials=len(group),
            tasks=len({trial.task for trial in group}),
            example=min(trial.rollout_id or trial.slot for trial in group),
        )
        for fingerprint, group in groups.items()
    ]
    return tuple(sorted(found, key=lambda each: (-each.trials, each.fingerprint)))


_UNKNOWN: Final = "unknown"


def _fingerprint(trial: Trial) -> str:
    parts = (trial.error_boundary or _UNKNOWN, trial.error_type or _UNKNOWN)
    return trial.fingerprint or ":".join(parts)


def spending(trials: Sequence[Trial], pass_reward: float) -> Spending:
    """Sum up the cost, the tokens and the time of trials."""
    tokens_in = [t.tokens_in for t in trials if t.tokens_in is not None]
    tokens_out = [t.tokens_out for t in trials if t.tokens_out is not None]
    costs = [t.cost_usd for t in trials if t.cost_usd is not None]
    times = [t.seconds for t in trials if t.seconds is not None]
    paid = [t.reward for t in trials if t.cost_usd is not None and t.reward is not None]
    passes = sum(reward >= pass_reward for reward in paid)
    cost = sum(costs) if costs else None
    return Spending(
        tokens_in=sum(tokens_in) if tokens_in else None,
        tokens_out=sum(tokens_out) if tokens_out else None,
        cost_usd=cost,
        unknown_tokens=sum(t.tokens_in is None for t in trials),
        unknown_cost=sum(t.cost_usd is None for t in trials),
        cost_per_pass=cost / passes if cost is not None and passes else None,
        seconds=sum(times) / len(times) if times else None,
    )
