"""The analysis of some jobs: each variant alone, and each against a baseline."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from benchflow_contracts import Model
from benchflow_store import GroupMean, group_means, read_groups
from pydantic import JsonValue

from .fact_files import quoted
from .facts import Facts, view_set
from .statement import query
from .statistics import Trial
from .trial_report import (
    DEFAULT_OPTIONS,
    AnalysisOptions,
    ComparisonReport,
    VariantReport,
    compare_groups,
    group_trials,
    report_variant,
)


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


class GroupRewardReport(Model):
    """A group reward of one variant of a job, beside the mean of its own rewards."""

    job: str
    name: str
    """The name of the variant in the report."""
    own_mean: float | None
    group: GroupMean


class AnalysisReport(Model):
    """The analysis of some jobs. The same input and seed give the same report."""

    schema_version: Literal["1.0"] = "1.0"
    options: AnalysisOptions
    jobs: tuple[JobProgress, ...]
    variants: tuple[VariantReport, ...]
    comparisons: tuple[ComparisonReport, ...]
    group_rewards: tuple[GroupRewardReport, ...] = ()
    """What group rewards gave, beside the rollouts' own rewards. No other number has them."""
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
        groups = group_trials(trials, list(facts.jobs))
        spaces = _spaces(facts)
        variants = tuple(
            report_variant(name, trials, spaces, options) for name, trials in groups.items()
        )
        baseline = options.baseline or _planned_baseline(facts, variants)
        return AnalysisReport(
            options=options,
            jobs=tuple(_progress(facts, job, trials) for job in facts.jobs),
            variants=variants,
            comparisons=compare_groups(groups, baseline, options),
            group_rewards=tuple(_group_rewards(jobs, facts, variants)),
            torn_bytes={
                f"{path.resolve().parents[1].name}/{path.name}": torn
                for path, torn in ((Path(name), torn) for name, torn in facts.torn_bytes.items())
            },
        )


def _group_rewards(
    jobs: Sequence[Path], facts: Facts, variants: Sequence[VariantReport]
) -> Iterator[GroupRewardReport]:
    """Yield each group reward. That of a job without variants belongs to its only variant."""
    for directory, job in zip(jobs, facts.jobs, strict=True):
        of_job = [each for each in variants if each.job == job]
        for mean in group_means(read_groups(directory)):
            found = [v for v in of_job if mean.variant in (None, v.variant)]
            only = found[0] if len(found) == 1 else None
            yield GroupRewardReport(
                job=job,
                name=(mean.variant or job) if only is None else only.name,
                own_mean=None if only is None or only.mean is None else only.mean.mean,
                group=mean,
            )


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
