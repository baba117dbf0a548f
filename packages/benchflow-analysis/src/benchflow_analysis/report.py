"""The analysis of some jobs: each variant alone, and each against a baseline."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import variance
from typing import Annotated, Final, Literal

from benchflow_contracts import Model, UsageError
from pydantic import Field, JsonValue

from .fact_files import quoted
from .facts import Facts, view_set
from .statement import query
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
    seed: int = Field(default=0, ge=0)
    """Of the bootstrap."""


DEFAULT_OPTIONS: Final = AnalysisOptions()


class JobProgress(Model):
    """How far a job is."""

    job: str
    design: str
    view: str
    """The view that answers the question of the design."""
    slots: int
    resolved: int
    answer: tuple[Mapping[str, JsonValue], ...]
    """The rows of the view."""


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


class AnalysisReport(Model):
    """The analysis of some jobs. The same input and seed give the same report."""

    schema_version: Literal["1.0"] = "1.0"
    options: AnalysisOptions
    jobs: tuple[JobProgress, ...]
    variants: tuple[VariantReport, ...]
    comparisons: tuple[ComparisonReport, ...]
    torn_bytes: Mapping[str, int]
    """Bytes of unfinished last lines that were left out, by job and file."""


def analyse(jobs: Sequence[Path], options: AnalysisOptions = DEFAULT_OPTIONS) -> AnalysisReport:
    """Analyse the jobs in these directories. They may be running.

    Raises:
        StoreError: A directory is not a job, or its facts are damaged.
        UsageError: The baseline does not exist.
    """
    with Facts(jobs) as facts:
        trials = facts.trials()
        groups = _groups(trials, list(facts.jobs))
        spaces = _spaces(facts)
        variants = tuple(_variant(name, trials, spaces, options) for name, trials in groups.items())
        baseline = options.baseline or _planned_baseline(facts, variants)
        return AnalysisReport(
            options=options,
            jobs=tuple(_progress(facts, job, trials) for job in facts.jobs),
            variants=variants,
            comparisons=_comparisons(groups, baseline, options),
            torn_bytes={
                f"{path.resolve().parents[1].name}/{path.name}": torn
                for path, torn in ((Path(name), torn) for name, torn in facts.torn_bytes.items())
            },
        )


def _groups(trials: Sequence[Trial], jobs: Sequence[str]) -> dict[str, list[Trial]]:
    """Return the trials by the name of their variant, in the order of the jobs."""
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


def _planned_baseline(facts: Facts, variants: Sequence[VariantReport]) -> str | None:
    """Return the name of the baseline in the plan of the first job, `None` if it has no trial."""
    first = next(iter(facts.jobs))
    planned = dict(facts.rows("SELECT job, baseline FROM run_manifest")).get(first)
    return next((v.name for v in variants if (v.job, v.variant) == (first, planned)), None)


def _spaces(facts: Facts) -> dict[tuple[str, str], dict[str, float]]:
    """Return the mean reward signal by job and variant, then by space."""
    spaces: dict[tuple[str, str], dict[str, float]] = {}
    for job, variant, space, value in facts.rows(
        'SELECT job, variant, name[7:], avg(value ORDER BY "index") FROM metrics_long '
        "WHERE starts_with(name, 'space.') AND value IS NOT NULL GROUP BY ALL ORDER BY ALL"
    ):
        spaces.setdefault((job, variant), {})[space] = value
    return spaces


def _calibration(trials: Sequence[Trial]) -> Calibration | None:
    """Compare V of each forked rollout with the other forked rollouts of its task."""
    values: dict[str, list[float]] = {}
    for trial in trials:
        if trial.value is not None and trial.leaves > 1:
            values.setdefault(trial.task, []).append(trial.value)
    return calibrate(held_out(values))


def _variant(
    name: str,
    trials: Sequence[Trial],
    spaces: Mapping[tuple[str, str], Mapping[str, float]],
    options: AnalysisOptions,
) -> VariantReport:
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


def _comparisons(
    groups: Mapping[str, Sequence[Trial]], baseline: str | None, options: AnalysisOptions
) -> tuple[ComparisonReport, ...]:
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


def _progress(facts: Facts, job: str, trials: Sequence[Trial]) -> JobProgress:
    own = [trial for trial in trials if trial.job == job]
    rows = facts.rows("SELECT job, design, slots FROM run_manifest")
    design, slots = next(
        ((design, slots) for name, design, slots in rows if name == job), (None, 0)
    )
    planned = facts.rows("SELECT job, count(*) FROM variant_snapshots GROUP BY job")
    variants = max(dict(planned).get(job, 0), len({trial.variant for trial in own}))
    view = view_set(design, variants)
    own_rows = f"SELECT * EXCLUDE (job) FROM {view} WHERE job = {quoted(job)}"  # noqa: S608
    found = query(facts, own_rows)
    return JobProgress(
        job=job,
        design=design or "paired",
        view=view,
        slots=max(slots or 0, len(own)),
        resolved=len(own),
        answer=tuple(
            {
                name: json.loads(value) if name == "config" and value else value
                for name, value in zip(found.columns, row, strict=True)
            }
            for row in found.records()
        ),
    )
