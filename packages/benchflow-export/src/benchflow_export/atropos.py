"""Samples as groups of Atropos: the bodies of `POST /scored_data`.

Source of the format: atroposlib 0.4.0, `atroposlib.api.server.ScoredData`.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from benchflow_contracts import StoreError

from .sample_exporter import Group, Line, SampleExporter
from .sequences import (
    Rendering,
    TrainedSequence,
    provenance,
    sampling_temperature,
    trained_sequences,
)

MASKED: Final = -100
"""The mask of a token that is not trained on; another token has itself as its mask."""
UNSAMPLED_LOGPROB: Final = 1.0
"""Stands for a token that is not trained on, as in atroposlib: no log-probability is above 0."""


def atropos_groups() -> SampleExporter:
    """Atropos groups, one `/scored_data` body per line, with an advantage for each token."""
    return SampleExporter(
        "atropos.jsonl", atropos_lines, ("intra+inter", "intra", "inter", "process", "none")
    )


def atropos_lines(group: Group, rendering: Rendering) -> Iterator[Line]:
    """Yield one body for the group, or none if no token can be trained on.

    Raises:
        StoreError: The trainer computes the advantages (`none`), and a break splits a leaf: its
            score would count twice in the trainer's mean.
    """
    sequences = [each for tree in group for each in trained_sequences(tree, rendering)]
    if not sequences:
        return
    if rendering.estimator == "none":
        _refuse_split_leaves(sequences)
    # A trainer that only reads scores takes the mean over the sequences of a body.
    yield Line(scored_data(sequences, rendering), tuple(each.sample for each in sequences))


def _refuse_split_leaves(sequences: Sequence[TrainedSequence]) -> None:
    leaves: set[tuple[str, str]] = set()
    for sequence in sequences:
        leaf = (sequence.sample.tree, sequence.sample.leaf)
        if leaf in leaves:
            raise StoreError(
                f"leaf {leaf[1]!r} of rollout {leaf[0]!r} has several token sequences, so its"
                " score would count several times",
                hint="choose another --advantage than none",
            )
        leaves.add(leaf)


def scored_data(sequences: Sequence[TrainedSequence], rendering: Rendering) -> dict[str, Any]:
    """Return the body of `/scored_data` for the sequences of one group.

    `overrides` has for each sequence its provenance, and its temperature if it is known.
    """
    masks = [
        [token if on else MASKED for token, on in zip(each.token_ids, each.mask, strict=True)]
        for each in sequences
    ]
    has_advantages = rendering.estimator != "none"
    return {
        "tokens": [each.token_ids for each in sequences],
        "masks": masks,
        "scores": [each.sample.reward for each in sequences],
        "advantages": [each.advantages() for each in sequences] if has_advantages else None,
        "inference_logprobs": [each.logprobs(UNSAMPLED_LOGPROB) for each in sequences],
        "overrides": [
            {**sampling_temperature(s.sample), "benchflow": provenance(s.sample, rendering)}
            for s in sequences
        ],
        "group_overrides": {
            "group_size": len(sequences),
            "benchflow": {
                "group": sequences[0].sample.group.id,
                "advantage": rendering.estimator,
                "shared_prefix": rendering.shared_prefix,
            },
        },
    }
