"""The tables of an analysis, for a terminal and for Markdown."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from .report import AnalysisReport, JobProgress
from .statistics import Interval
from .trial_report import ComparisonReport, VariantReport

_MARKUP: Final = re.compile(
    r"(?P<interval>\[[-+]?\d+\.\d+, [-+]?\d+\.\d+\](?![:(\[]))"
    r"|(?P<html>[<>&])|(?P<mark>[\\`*\[\]|~$])"
)
_HTML: Final = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a header, and sentences below them."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def report_tables(report: AnalysisReport) -> list[Table]:
    """Return the tables of a report that have rows. A single job has the view of its design."""
    tables = [
        _variants(report),
        _group_rewards(report),
        _comparisons(report),
        *(_answer(job) for job in report.jobs if len(report.jobs) == 1),
        _plan(report),
        _variance(report),
        _spending(report),
        _spaces(report),
        _calibration(report),
        _failures(report),
    ]
    return [table for table in tables if table.rows]


def to_markdown(report: AnalysisReport) -> str:
    """Return the report as Markdown. Names are shown as text: they hold no markup."""
    names = ", ".join(f"`{plain_text(each.job).replace('`', '?')}`" for each in report.jobs)
    parts = [f"# Analysis of {names}"]
    if not report.variants:
        notes = map(_markdown, ("no slot is resolved yet", *report_notes(report)))
        parts.append("\n".join(f"- {note}" for note in notes))
    for table in report_tables(report):
        lines = [f"## {_markdown(table.title)}", "", _line(table.columns)]
        lines.append(_line(["---"] * len(table.columns)))
        lines += [_line(row) for row in table.rows]
        lines += ["", *(f"- {_markdown(note)}" for note in table.notes)] if table.notes else []
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def plain_text(text: str) -> str:
    """Return a text with escape sequences for characters that are not printable."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_markdown, cells)) + " |"


def _markdown(text: str) -> str:
    return _MARKUP.sub(_escape, plain_text(text))


def _escape(match: re.Match[str]) -> str:
    found = match[0]
    if match["interval"]:
        return found
    return _HTML[found] if match["html"] else f"\\{found}"


def number(value: float | None, *, sign: bool = False) -> str:
    """Return a number with three decimals, or a dash for none."""
    if value is None:
        return "-"
    return f"{value + 0.0:{'+' if sign else ''}.3f}"


def interval_text(interval: Interval | None, *, sign: bool = False) -> str:
    """Return an interval in brackets, or a dash for none."""
    if interval is None:
        return "-"
    return f"[{number(interval.low, sign=sign)}, {number(interval.high, sign=sign)}]"


def _variants(report: AnalysisReport) -> Table:
    ks = sorted({each.k for variant in report.variants for each in variant.pass_at_k})
    level = f"{report.options.confidence * 100:g} % interval"
    rows = tuple(
        (
            each.name,
            str(each.mean.tasks if each.mean else 0),
            str(each.trials),
            str(each.unscored),
            number(each.mean.mean if each.mean else None),
            interval_text(each.mean.interval if each.mean else None),
            *(_pass_text(each, k) for k in ks),
        )
        for each in report.variants
    )
    columns = ("variant", "tasks", "trials", "unscored", "mean reward", level)
    return Table(
        "Variants", (*columns, *(f"pass@{k}" for k in ks)), rows, tuple(_variant_notes(report))
    )


def _group_rewards(report: AnalysisReport) -> Table:
    rows = tuple(
        (
            each.name,
            each.group.reward,
            number(each.group.mean),
            number(each.own_mean),
            str(each.group.groups),
            str(each.group.leaves),
            str(each.group.unscored),
            str(each.group.lost),
        )
        for each in report.group_rewards
    )
    columns = ("variant", "group reward", "mean", "own mean", "groups", "leaves", "unscored")
    notes = ("the other tables have the rollouts' own rewards",) if rows else ()
    return Table("Group rewards", (*columns, "lost"), rows, notes)


def _pass_text(variant: VariantReport, k: int) -> str:
    return number(next((each.value for each in variant.pass_at_k if each.k == k), None))


def _variant_notes(report: AnalysisReport) -> Iterator[str]:
    yield from report_notes(report)
    for each in report.variants:
        if each.mean is None:
            yield f"{each.name} has no scored trial"
        elif each.mean.refused:
            yield f"no interval for {each.name}: {each.mean.refused}"
        if each.tampered:
            yield f"{each.name}: {each.tampered} trials were tampered with and count as 0"
        if each.pruned:
            yield f"{each.name}: {each.pruned} slots were pruned"


def report_notes(report: AnalysisReport) -> Iterator[str]:
    """Yield what is missing: unresolved slots, unfinished lines, and unknown pass@k."""
    for job in report.jobs:
        if job.resolved < job.slots:
            yield f"{job.job} is not complete: {job.resolved} of {job.slots} slots are resolved"
    for name, torn in report.torn_bytes.items():
        yield f"{name} ends in an unfinished line of {torn} bytes; it is left out"
    reached = {each.k for variant in report.variants for each in variant.pass_at_k}
    for k in report.options.k:
        if k not in reached:
            yield f"pass@{k} is not known: no task has {k} scored trials"


def _comparisons(report: AnalysisReport) -> Table:
    level = f"{report.options.confidence * 100:g} % interval"
    rows = tuple(_comparison(each) for each in report.comparisons)
    columns = ("variant", "against", "tasks", "won/lost/tied", "delta", level, "p", "answer")
    return Table("Comparisons", columns, rows, tuple(_comparison_notes(report)))


def _comparison(each: ComparisonReport) -> tuple[str, ...]:
    paired = each.paired
    if paired is None:
        return (each.variant, each.baseline, "0", "-", "-", "-", "-", each.answer)
    return (
        each.variant,
        each.baseline,
        str(paired.tasks),
        f"{paired.wins}/{paired.losses}/{paired.ties}",
        number(paired.delta, sign=True),
        interval_text(paired.interval, sign=True),
        number(each.adjusted_p),
        each.answer,
    )


def _comparison_notes(report: AnalysisReport) -> Iterator[str]:
    margin = number(report.options.margin)
    for each in report.comparisons:
        paired = each.paired
        if paired is None:
            yield f"{each.variant} and {each.baseline} have no scored task in common"
            continue
        if paired.refused:
            yield f"no interval for {each.variant}: {paired.refused}"
        if paired.unpaired:
            yield f"{each.variant}: {paired.unpaired} tasks of one variant alone are left out"
        if paired.mcnemar:
            exact = paired.mcnemar
            yield (
                f"{each.variant}: McNemar's exact test, {exact.wins} tasks won and "
                f"{exact.losses} lost, p {number(exact.p_value)}"
            )
        if paired.bootstrap:
            shown = interval_text(paired.bootstrap, sign=True)
            yield f"{each.variant}: percentile bootstrap over tasks {shown}, for comparison"
    if report.comparisons:
        yield f"tied: the interval lies within ±{margin}; p is Holm's over all comparisons"


def _answer(job: JobProgress) -> Table:
    """Return the view of the design. `win_loss_tie` says less than the comparisons do."""
    rows = () if job.view == "win_loss_tie" else job.answer
    columns = tuple(rows[0]) if rows else ()
    cells = tuple(tuple(map(_cell, row.values())) for row in rows)
    return Table(f"{job.view} of {job.job}, design {job.design}", columns, cells)


def _cell(value: JsonValue) -> str:
    if value is None or isinstance(value, float):
        return number(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _plan(report: AnalysisReport) -> Table:
    power = f"{report.options.power * 100:g} %"
    rows = tuple(
        (each.variant, str(plan.repeats), str(plan.tasks), str(plan.rollouts))
        for each in report.comparisons
        for plan in each.plan
    )
    notes = tuple(
        f"{each.variant}: this many tasks and repeats find a delta of "
        f"{number(each.detectable_delta)} with a power of {power}"
        for each in report.comparisons
        if each.detectable_delta is not None
    )
    title = f"Tasks that find a delta of {number(report.options.margin)} with a power of {power}"
    return Table(title, ("variant", "repeats", "tasks", "rollouts"), rows, notes)


def _variance(report: AnalysisReport) -> Table:
    rows = tuple(
        (
            each.name,
            number(each.variance.within),
            number(each.variance.between),
            number(each.variance.of_task_means),
        )
        for each in report.variants
        if each.variance is not None and each.variance.within is not None
    )
    columns = ("variant", "within a task", "between tasks", "of task means")
    return Table("Variance of the reward", columns, rows)


def _spending(report: AnalysisReport) -> Table:
    rows = tuple(
        (
            each.name,
            *("-" if n is None else str(n) for n in (spent.tokens_in, spent.tokens_out)),
            number(spent.cost_usd),
            number(spent.cost_per_pass),
            "-" if spent.seconds is None else f"{spent.seconds:.1f}",
        )
        for each, spent in ((each, each.spending) for each in report.variants)
    )
    notes = tuple(
        f"{each.name}: tokens of {each.spending.unknown_tokens} and cost of "
        f"{each.spending.unknown_cost} trials are not known"
        for each in report.variants
        if each.spending.unknown_tokens or each.spending.unknown_cost
    )
    columns = ("variant", "tokens in", "tokens out", "cost USD", "USD per pass", "seconds")
    return Table("Cost", columns, rows, notes)


def _spaces(report: AnalysisReport) -> Table:
    rows = tuple(
        (each.name, space, number(value))
        for each in report.variants
        for space, value in each.rewards_by_space.items()
    )
    if len({space for _, space, _ in rows}) < 2:
        rows = ()
    return Table("Reward by space", ("variant", "space", "mean"), rows)


def _calibration(report: AnalysisReport) -> Table:
    rows = tuple(
        (
            each.name,
            f"{number(part.low)} to {number(part.high)}",
            str(part.n),
            number(part.predicted),
            number(part.observed),
        )
        for each in report.variants
        if each.calibration is not None
        for part in each.calibration.bins
    )
    notes = tuple(
        f"{each.name}: bias {number(each.calibration.bias, sign=True)}, "
        f"root mean square error {number(each.calibration.rmse)}"
        for each in report.variants
        if each.calibration is not None
    )
    columns = ("variant", "V", "rollouts", "mean V", "mean of the others")
    return Table("Calibration of V", columns, rows, notes)


def _failures(report: AnalysisReport) -> Table:
    rows = tuple(
        (
            each.name,
            str(failure.trials),
            str(failure.tasks),
            failure.error_boundary,
            failure.error_type,
            failure.fingerprint,
            failure.example,
        )
        for each in report.variants
        for failure in each.failures
    )
    columns = ("variant", "trials", "tasks", "boundary", "error", "fingerprint", "example")
    return Table("Unscored trials by cause", columns, rows)
