"""The rules of alerts: a threshold, a drift against a baseline, or the absence of rollouts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from benchflow_contracts import UsageError
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from .metrics import Group, Queries, Selection, check_metric, groups, narrowed, quantile, sample


class _Rule(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, max_length=100)
    service: str | None = None
    version: str | None = None
    environment: str | None = None
    by: Group = ""
    """One alert for each value, such as each version."""
    window_min: float = Field(default=60, gt=0)
    """The minutes that are judged, up to now."""
    min_n: int = Field(default=20, ge=1)
    """Fewer rollouts in the window are too few to judge."""


class ThresholdRule(_Rule):
    """The mean or a quantile of a metric is above or below a value."""

    kind: Literal["threshold"]
    metric: str
    above: float | None = None
    below: float | None = None
    quantile: float | None = Field(default=None, gt=0, lt=1)

    @model_validator(mode="after")
    def _has_one_limit(self) -> "ThresholdRule":
        check_metric(self.metric)
        if (self.above is None) == (self.below is None):
            raise ValueError("give 'above' or 'below'")
        return self


class DriftRule(_Rule):
    """The mean of a metric differs from its mean in the baseline before the window."""

    kind: Literal["drift"]
    metric: str
    baseline_min: float = Field(default=1440, gt=0)
    """The minutes of the baseline, which ends where the window begins."""
    delta: float = Field(default=0.0, ge=0)
    """A smaller difference does not matter."""
    z: float = Field(default=5.0, gt=0)
    """The difference in standard errors (Welch). 5 allows one check a minute for weeks."""

    @model_validator(mode="after")
    def _has_a_metric(self) -> "DriftRule":
        check_metric(self.metric)
        return self


class AbsenceRule(_Rule):
    """Fewer than `min_n` rollouts ended in the window, and the baseline had some."""

    kind: Literal["absence"]
    min_n: int = Field(default=1, ge=1)
    baseline_min: float = Field(default=1440, gt=0)


Rule = ThresholdRule | DriftRule | AbsenceRule
_rules: TypeAdapter[Rule] = TypeAdapter(Annotated[Rule, Field(discriminator="kind")])


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule says of one group now."""

    rule: str
    group: str
    is_firing: bool
    n: int
    value: float | None = None
    baseline: float | None = None
    baseline_n: int | None = None
    message: str = ""


def read_rules(tables: Sequence[Mapping[str, Any]]) -> tuple[Rule, ...]:
    """Return the rules of `[[alerts]]`.

    Raises:
        UsageError: A rule is wrong, with `monitor.toml:alerts[i].key`, or two have one name.
    """
    rules: list[Rule] = []
    for number, table in enumerate(tables):
        where = f"monitor.toml:alerts[{number}]"
        try:
            rule = _rules.validate_python(table)
        except UsageError as error:
            raise UsageError(str(error), hint=error.hint, where=where) from error
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            key = ".".join(str(part) for part in problem["loc"][1:])
            raise UsageError(problem["msg"], where=f"{where}.{key}".rstrip(".")) from error
        if rule.name in {other.name for other in rules}:
            raise UsageError(f"two alerts are named {rule.name!r}", where=f"{where}.name")
        rules.append(rule)
    return tuple(rules)


def check_rule(queries: Queries, rule: Rule, now: float) -> list[Finding]:
    """Judge a rule for each of its groups."""
    width = rule.window_min * 60
    window = Selection(now - width, now, rule.service, rule.version, rule.environment)
    span = width if isinstance(rule, ThresholdRule) else width + rule.baseline_min * 60
    found = groups(queries, replace(window, since=now - span), rule.by)
    return [_check(queries, rule, narrowed(window, rule.by, name), name) for name in found]


def _check(queries: Queries, rule: Rule, window: Selection, group: str) -> Finding:
    match rule:
        case ThresholdRule():
            return _check_threshold(queries, rule, window, group)
        case DriftRule():
            return _check_drift(queries, rule, window, group)
        case AbsenceRule():
            return _check_absence(queries, rule, window, group)


def _check_threshold(
    queries: Queries, rule: ThresholdRule, window: Selection, group: str
) -> Finding:
    seen = sample(queries, rule.metric, window)
    if seen.n < rule.min_n:
        return Finding(rule.name, group, is_firing=False, n=seen.n)
    value: float = seen.mean
    if rule.quantile is not None:
        value = quantile(queries, rule.metric, window, rule.quantile) or 0.0
    over = rule.above is not None and value > rule.above
    under = rule.below is not None and value < rule.below
    limit = rule.above if rule.above is not None else rule.below
    side = "above" if rule.above is not None else "below"
    what = rule.metric if rule.quantile is None else f"{rule.metric} p{rule.quantile * 100:g}"
    message = f"{what} is {value:.4g}, {side} {limit:g} (n={seen.n}, {rule.window_min:g} min)"
    return Finding(rule.name, group, over or under, seen.n, value, limit, message=message)


def _check_drift(queries: Queries, rule: DriftRule, window: Selection, group: str) -> Finding:
    begin = window.since - rule.baseline_min * 60
    seen = sample(queries, rule.metric, window)
    before = sample(queries, rule.metric, replace(window, since=begin, until=window.since))
    if seen.n < rule.min_n or before.n < rule.min_n:
        return Finding(rule.name, group, is_firing=False, n=seen.n, baseline_n=before.n)
    difference = seen.mean - before.mean
    # A window without variance still has the baseline's: one value alone proves little.
    spread = max(seen.variance, before.variance)
    error = math.sqrt(spread / seen.n + before.variance / before.n)
    is_large = abs(difference) > rule.delta and abs(difference) > rule.z * error
    message = (
        f"{rule.metric} is {seen.mean:.4g} (n={seen.n}, {rule.window_min:g} min),"
        f" {difference:+.4g} against {before.mean:.4g} (n={before.n}, {rule.baseline_min:g} min)"
    )
    return Finding(
        rule.name, group, is_large, seen.n, seen.mean, before.mean, before.n, message=message
    )


def _check_absence(queries: Queries, rule: AbsenceRule, window: Selection, group: str) -> Finding:
    begin = window.since - rule.baseline_min * 60
    seen = sample(queries, "rollouts", window)
    before = sample(queries, "rollouts", replace(window, since=begin, until=window.since))
    message = f"{seen.n} rollouts in {rule.window_min:g} min, {before.n} in the baseline"
    is_absent = seen.n < rule.min_n and before.n > 0
    return Finding(rule.name, group, is_absent, seen.n, baseline_n=before.n, message=message)
