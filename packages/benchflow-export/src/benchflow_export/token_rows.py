"""Groups of samples as rows of tokens, for trainers that learn from arrays.

A credit row has one advantage, which is ours. A response row has a prompt and a response, and the
trainer computes the advantage from the return.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from benchflow_contracts import Sample, SampleSpan, SharedPrefix, TokenSequence, UsageError

from .advantages import mean_advantages
from .rollout_groups import ExcludedLeaf, ExcludedReason, RolloutGroup, TrainerOptions

_VERSION: Final = re.compile(r"(?:^v?|[-_@/:]v|(?:^|[-_@/:])step[-_]?)(\d{1,15})", re.ASCII)


@dataclass(frozen=True, slots=True)
class CreditRow:
    """Tokens of one sequence with the one advantage of those in `loss_mask`."""

    sample: Sample
    messages: tuple[SampleSpan, ...]
    """The messages of the tokens."""
    prompt_messages: int
    """The number of messages before the first one that is trained on."""
    token_ids: list[int]
    loss_mask: list[int]
    """1 for each token that is trained on. The first one is always 0: nothing predicts it."""
    logprobs: list[float]
    """0 for each token that is not trained on."""
    advantage: float
    shared_prefix: SharedPrefix
    version: int
    """The oldest weights that sampled a message of the sample."""


def credit_rows(
    group: RolloutGroup, options: TrainerOptions | None = None
) -> tuple[list[CreditRow], list[ExcludedLeaf]]:
    """Return the rows of a group, and the samples that do not give one.

    A row is a sequence of tokens up to the last one that is trained on. A sample has several rows
    if its spans have several advantages, or after a break. Each token of a sample is trained on in
    at most one row. A sample is left out if its weights are unknown, or if no span has an
    advantage: its group does not have a baseline.

    Raises:
        UsageError: The advantage of the options is `none`.
    """
    options = options or TrainerOptions()
    if options.estimator == "none":
        raise UsageError(
            "a credit row needs an advantage, not 'none'", hint="choose intra, inter or process"
        )
    rows: list[CreditRow] = []
    excluded: list[ExcludedLeaf] = []
    for tree in _trees(group.samples):
        known: list[tuple[Sample, int]] = []
        for sample in tree:
            version = _version(sample, group, options)
            if version is None:
                detail = ", ".join(sample.policy_versions) or "not recorded"
                excluded.append(_exclude(sample, "no-version", detail))
            else:
                known.append((sample, version))
        credited = _credited([sample for sample, _ in known], options)
        for (sample, version), advantages in zip(known, credited, strict=True):
            own = list(_rows(sample, advantages, options, version))
            if not own and not (options.shared_prefix == "once" and _has_credit(sample, options)):
                excluded.append(_exclude(sample, "no-advantage", options.estimator))
            rows += own
    return rows, excluded


def version_number(text: str) -> int | None:
    """Return the number in the name of some weights: `7`, `v7`, `policy-v7` or `step_7`, or `None`.

    The name of a model, such as `qwen3-8`, is not a version.
    """
    match = _VERSION.search(text)
    return int(match[1]) if match is not None and match.end() == len(text) else None


def version_range(versions: Sequence[str]) -> tuple[int, int] | None:
    """Return the numbers of the oldest and the newest weights; `None` if one has no number."""
    numbers = [version_number(text) for text in versions]
    known = [number for number in numbers if number is not None]
    if not known or len(known) < len(numbers):
        return None
    return min(known), max(known)


def _version(sample: Sample, group: RolloutGroup, options: TrainerOptions) -> int | None:
    recorded = version_range(sample.policy_versions)
    if recorded is not None:
        return recorded[0]
    return group.policy_version if group.policy_version is not None else options.assumed_version


def _exclude(sample: Sample, reason: ExcludedReason, detail: str) -> ExcludedLeaf:
    return ExcludedLeaf(reason, sample.tree, sample.leaf, detail, sample)


def _has_credit(sample: Sample, options: TrainerOptions) -> bool:
    advantages = sample.advantages.get(options.estimator, ())
    return any(
        span.is_trainable and advantage is not None
        for span, advantage in zip(sample.spans, advantages, strict=False)
    )


def _trees(samples: Sequence[Sample]) -> list[list[Sample]]:
    trees: dict[str, list[Sample]] = {}
    for sample in samples:
        trees.setdefault(sample.tree, []).append(sample)
    return list(trees.values())


def _credited(
    samples: Sequence[Sample], options: TrainerOptions
) -> Iterator[tuple[float | None, ...]]:
    """Yield for each sample of a tree the advantage of each span that it trains on."""
    if options.shared_prefix == "per_leaf":
        for sample in samples:
            yield sample.advantages.get(options.estimator) or (None,) * len(sample.spans)
        return
    ids = dict.fromkeys(span.id for sample in samples for span in sample.spans)
    left = dict(zip(ids, mean_advantages(samples, ids, options.estimator), strict=True))
    for sample in samples:
        yield tuple(left.pop(span.id, None) for span in sample.spans)


def _rows(
    sample: Sample, advantages: tuple[float | None, ...], options: TrainerOptions, version: int
) -> Iterator[CreditRow]:
    own = sample.model_copy(update={"advantages": {options.estimator: advantages}})
    for sequence in own.sequences(options.estimator):
        values = dict.fromkeys(
            advantage
            for span, advantage in zip(sequence.spans, sequence.advantages, strict=True)
            if span.is_trainable and advantage is not None
        )
        for value in values:
            row = _row(sample, sequence, value, options.shared_prefix, version)
            if any(row.loss_mask):
                yield row


def _row(
    sample: Sample, sequence: TokenSequence, value: float, shared: SharedPrefix, version: int
) -> CreditRow:
    chosen = [
        span.is_trainable and advantage == value
        for span, advantage in zip(sequence.spans, sequence.advantages, strict=True)
    ]
    first = chosen.index(True)
    end = len(chosen) - chosen[::-1].index(True)
    spans = sequence.spans[:end]
    mask: list[int] = []
    logprobs: list[float] = []
    for span, is_chosen in zip(spans, chosen, strict=False):
        n = len(span.token_ids)
        before = span.scaffold if is_chosen else n
        mask += [0] * before + [1] * (n - before)
        logprobs += [0.0] * before + (list(span.logprobs) if is_chosen else [])
    if mask:
        mask[0], logprobs[0] = 0, 0.0
    return CreditRow(
        sample=sample,
        messages=spans,
        prompt_messages=first,
        token_ids=[token for span in spans for token in span.token_ids],
        loss_mask=mask,
        logprobs=logprobs,
        advantage=value,
        shared_prefix=shared,
        version=version,
    )


@dataclass(frozen=True, slots=True)
class ResponseRow:
    """A sequence of tokens as a prompt and a response, which begins with the first sampled token.

    Tokens of the environment in the response have 0 in `response_mask`, and log-probability 0.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    logprobs: list[float]
    routed_experts: list[list[list[int]]] | None = None
    """For each token of the prompt and the response, if the endpoint sent all of them."""


def response_rows(sample: Sample) -> list[ResponseRow]:
    """Return a row for each sequence of a sample that has a token to train on.

    A sample without a break has one row, or none.
    """
    rows: list[ResponseRow] = []
    for sequence in sample.sequences():
        mask = [int(flag) for flag in sequence.loss_mask]
        if not any(mask):
            continue
        tokens, cut = sequence.token_ids, max(_first_response(sequence), 1)
        logprobs = [value or 0.0 for value in sequence.logprobs]
        parts = (tokens[:cut], tokens[cut:], mask[cut:], logprobs[cut:])
        rows.append(ResponseRow(*parts, sequence.routed_experts))
    return [row for row in rows if any(row.response_mask)]


def _first_response(sequence: TokenSequence) -> int:
    """Return the number of tokens before the first one that a model sampled."""
    span = next(span for span in sequence.spans if span.kind in ("sampled", "replayed"))
    return span.start + span.scaffold


def fill_rows(group: RolloutGroup, size: int) -> tuple[list[Sample | ExcludedLeaf], int]:
    """Return exactly `size` leaves of a group for a trainer that asks for a number, and the rest.

    First come the samples, one of each tree, then the second of each, and so on. Then come leaves
    that are excluded, those with a return first, and then a leaf `missing` for each one that did
    not come. The second number counts samples that do not fit.
    """
    trees = _trees(group.samples)
    longest = max(map(len, trees), default=0)
    samples = [tree[at] for at in range(longest) for tree in trees if at < len(tree)]
    others = sorted(group.excluded, key=lambda leaf: leaf.reward is None)
    missing = [ExcludedLeaf("missing") for _ in range(size)]
    rows: list[Sample | ExcludedLeaf] = [*samples, *others, *missing]
    return rows[:size], max(len(samples) - size, 0)
