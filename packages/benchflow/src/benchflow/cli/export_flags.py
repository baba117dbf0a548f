"""The flags of an export for a trainer, and its report."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from benchflow_contracts import Exported, FinishedRollout, TrainingOptions
from benchflow_export import write_export
from cyclopts import Parameter

from .output import note, print_json

ExportFlags = Annotated[TrainingOptions, Parameter(name="*")]
"""Every field of TrainingOptions as a flag of its own."""


def write_and_report(
    name: str,
    rollouts: Iterable[FinishedRollout],
    output: Path,
    options: TrainingOptions,
    *,
    json: bool,
) -> None:
    """Write `output` with the exporter called `name`, and print the counts."""
    counts = write_export(name, rollouts, output, options)
    if json:
        print_json({"path": str(output), **counts.model_dump()})
        return
    report_counts(counts, output)


def report_counts(counts: Exported, output: Path) -> None:
    """Print the counts of an export."""
    note(
        f"wrote {counts.trajectories} trajectories to {output}, {counts.unscored} unscored"
        f" ({counts.tampered} tampered with)"
    )
    for line in _faults(counts):
        note(line)


def _faults(counts: Exported) -> Iterable[str]:
    if counts.counterfactual:
        yield (
            f"left out {counts.counterfactual} leaves below answers that the task's user does not"
            " give (--counterfactual exports them)"
        )
    if counts.breaks:
        yield (
            f"{counts.breaks} breaks: a prompt did not begin with the tokens before it;"
            f" {counts.repeated_tokens} tokens of prompts are repeated"
        )
    if counts.missing_logprobs:
        yield (
            f"{counts.missing_logprobs} model messages have no log-probabilities, so a trainer"
            " cannot use them (--require-tokens refuses them)"
        )
    if counts.untrainable:
        yield (
            f"left out {counts.untrainable} scored leaves without a token to train on: a token"
            " needs a log-probability and an advantage, and the leaf must not be masked"
        )
    if counts.truncated:
        yield f"a limit on tokens or requests ended {counts.truncated} scored leaves"
    if counts.mixed_versions:
        yield f"several versions of the policy sampled {counts.mixed_versions} scored leaves"
    if counts.mixed_calls:
        yield (
            f"the weights changed while {counts.mixed_calls} model messages were sampled, so they"
            " are trained on only with --mixed-calls train"
        )
    if counts.sampling_masks:
        yield (
            f"{counts.sampling_masks} scored leaves were sampled from a part of the vocabulary;"
            " only the formats v1-leaves, v1-graph and v1-flat have their sampling masks"
        )
