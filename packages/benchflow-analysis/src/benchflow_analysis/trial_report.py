"""The report on trials alone: each variant, and each against a baseline. Pure functions."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import variance
from typing import Annotated, Final

from benchflow_contracts import Model, UsageError
from pydantic import Field

from .statistics import (
    Answer,
    Calibration,
    Failures,
    MeanEstimate,
    PairedDelta,
    PassEstimate,
    Spending,
    TaskRewards,
    TasksNeeded,
    Trial,
    VarianceParts,
    answer,
    calibrate,
    delta_variance,
    detectable_delta,
    group_failures,
    held_out,
    holm,
    mean_estimate,
    paired_delta,
    pass_estimates,
    plan_tasks,
    scored_rewards,
    spending,
    task_deltas,
    variance_parts,
)


class AnalysisOptions(Model):
    """What an analysis computes."""

    k: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """The k of pass@k (default: 1, its doubles, and the number of repeats)."""
    baseline: str | None = None
    """The name of the variant that the others are compared with (default: the baseline of
    the job, else the first)."""
    pass_reward: float = Field(default=1.0, allow_inf_nan=False)
    margin: float = Field(default=0.05, gt=0, allow_inf_nan=False)
    """The largest difference that counts as tied. The plan says how many tasks find it."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    power: float = Field(default=0.8, gt=0.5, lt=1)
    seed: Annotated[int, Field(ge=0)] | None = 0
    """Of the bootstrap; `None` computes no bootstrap."""


DEFAULT_OPTIONS: Final = AnalysisOptions()


class VariantReport(Model):
    """One variant of one job. Unscored trials are counted and in no mean."""

    name: str
    """The variant. Of several jobs: the job, with the variant if a job has several."""
    job: str
    variant: str
    trials: int
    scored: int
    unscored: int
    pruned: int
    """Slots that were skipped because the variant failed too often. They are not trials."""
    tampered: int
    """Trials with a verdict that the agent may have steered. They are scored as 0."""
    mean: MeanEstimate | None
    pass_at_k: tuple[PassEstimate, ...]
    variance: VarianceParts | None
    spending: Spending
    failures: tuple[Failures, ...]
    calibration: Calibration | None
    """Of V of forked rollouts, held against the other forked rollouts of the same task."""
    rewards_by_space: Mapping[str, float]
    """The mean of all reward signals of a space, over trials."""


class ComparisonReport(Model):
    """One variant against the baseline."""

    baseline: str
    variant: str
    paired: PairedDelta | None
    """`None` without a common task."""
    adjusted_p: float | None
    """By Holm, over all comparisons of the analysis."""
    answer: Answer
    detectable_delta: float | None
    """The delta that this many tasks find with the wanted power. With several comparisons, this
    and the plan hold for the confidence of Holm's first step."""
    plan: tuple[TasksNeeded, ...]
    """The tasks that find a delta as large as the margin, for some numbers of repeats."""


def group_trials(trials: Sequence[Trial], jobs: Sequence[str]) -> dict[str, list[Trial]]:
    """Return the trials by the name of their variant, in the order of the jobs.

    Of several jobs, a name is the job, with the variant if a job has several.
    """
    by_key: dict[tuple[str, str], list[Trial]] = {}
    for trial in sorted(trials, key=lambda each: (jobs.index(each.job), each.index)):
        by_key.setdefault((trial.job, trial.variant), []).append(trial)
    per_job = Counter(job for job, _ in by_key)

    def name(job: str, variant: str) -> str:
        if len(jobs) == 1:
            return variant
        return f"{job}:{variant}" if max(per_job.values()) > 1 else job

    names = Counter(name(*key) for key in by_key)
    return {
        name(*key) if names[name(*key)] == 1 else repr(key): group for key, group in by_key.items()
    }


def report_variant(
    name: str,
    trials: Sequence[Trial],
    spaces: Mapping[tuple[str, str], Mapping[str, float]],
    options: AnalysisOptions,
) -> VariantReport:
    """Return the report on one group of `group_trials`, which is not empty.

    `spaces` has the mean reward signal by job and variant, then by space.
    """
    key = trials[0].job, trials[0].variant
    ran = [trial for trial in trials if trial.status != "skipped_pruned"]
    rewards = scored_rewards(ran)
    most = max(map(len, rewards.values()), default=0)
    scored = sum(map(len, rewards.values()))
    return VariantReport(
        name=name,
        job=key[0],
        variant=key[1],
        trials=len(ran),
        scored=scored,
        unscored=len(ran) - scored,
        pruned=len(trials) - len(ran),
        tampered=sum(trial.tampered > 0 for trial in ran),
        mean=mean_estimate(rewards, options.confidence),
        pass_at_k=pass_estimates(
            rewards, options.k or _default_ks(most), options.pass_reward, options.confidence
        ),
        variance=variance_parts(rewards) if rewards else None,
        spending=spending(ran, options.pass_reward),
        failures=group_failures(ran),
        calibration=_calibration(ran),
        rewards_by_space=spaces.get(key, {}),
    )


def _default_ks(most: int) -> tuple[int, ...]:
    return tuple(k for k in range(1, most + 1) if k == most or k & (k - 1) == 0)


def compare_groups(
    groups: Mapping[str, Sequence[Trial]], baseline: str | None, options: AnalysisOptions
) -> tuple[ComparisonReport, ...]:
    """Compare each group with `baseline` (default: the first group).

    Raises:
        UsageError: The baseline is not a group.
    """
    names = list(groups)
    if len(names) < 2 and options.baseline is None:
        return ()
    baseline = baseline or names[0]
    if baseline not in groups:
        raise UsageError(
            f"--baseline {baseline!r} is not a variant", hint=f"variants: {', '.join(names)}"
        )
    rewards = {name: scored_rewards(trials) for name, trials in groups.items()}
    others = [name for name in names if name != baseline]
    deltas = [
        paired_delta(
            rewards[baseline], rewards[name], confidence=options.confidence, seed=options.seed
        )
        for name in others
    ]
    known = [delta.p_value for delta in deltas if delta and delta.p_value is not None]
    adjusted = iter(holm(known))
    # Each plan must hold for Holm's first step.
    strict = 1 - (1 - options.confidence) / max(1, len(others))
    reports: list[ComparisonReport] = []
    for name, delta in zip(others, deltas, strict=True):
        p = next(adjusted) if delta and delta.p_value is not None else None
        spread = delta_variance(rewards[baseline], rewards[name])
        reports.append(
            ComparisonReport(
                baseline=baseline,
                variant=name,
                paired=delta,
                adjusted_p=p,
                answer=_answer(delta, p, options),
                detectable_delta=_detectable(
                    rewards[baseline], rewards[name], options.power, strict
                ),
                plan=plan_tasks(spread, options.margin, power=options.power, confidence=strict)
                if spread
                else (),
            )
        )
    return tuple(reports)


def _answer(delta: PairedDelta | None, p: float | None, options: AnalysisOptions) -> Answer:
    if delta is None:
        return "unclear"
    return answer(delta, p, margin=options.margin, confidence=options.confidence)


def _detectable(
    baseline: TaskRewards, variant: TaskRewards, power: float, confidence: float
) -> float | None:
    deltas = list(task_deltas(baseline, variant).values())
    if len(set(deltas)) < 2:
        return None
    return detectable_delta(len(deltas), variance(deltas), power=power, confidence=confidence)


def _calibration(trials: Sequence[Trial]) -> Calibration | None:
    """Compare V of each forked rollout with the other forked rollouts of its task."""
    values: dict[str, list[float]] = {}
    for trial in trials:
        if trial.value is not None and trial.leaves > 1:
            values.setdefault(trial.task, []).append(trial.value)
    return calibrate(held_out(values))
