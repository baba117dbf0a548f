"""The token sequences of samples, and the advantage of each token that is trained on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchflow_contracts import AdvantageEstimator, Sample, SampleSpan, SharedPrefix

from .advantages import mean_advantages


@dataclass(frozen=True, slots=True)
class Rendering:
    """How a format renders the samples of a group."""

    estimator: AdvantageEstimator
    shared_prefix: SharedPrefix


@dataclass(frozen=True, slots=True)
class TrainedSequence:
    """Tokens that one model call saw and said, and what a trainer does with each token."""

    sample: Sample
    spans: tuple[SampleSpan, ...]
    trained: tuple[bool, ...]
    """For each span, whether its sampled tokens are trained on in this sequence."""
    marks: tuple[float | None, ...]
    """For each span its advantage."""

    @property
    def token_ids(self) -> list[int]:
        """The prompt, and all messages after it."""
        return [token for span in self.spans for token in span.token_ids]

    @property
    def mask(self) -> list[bool]:
        """For each token, whether it is trained on."""
        return [
            flag and is_trained
            for span, is_trained in zip(self.spans, self.trained, strict=True)
            for flag in span.mask
        ]

    def logprobs(self, fill: float) -> list[float]:
        """Return for each token its log-probability, or `fill` if it is not trained on."""
        return self._per_token([span.logprobs for span in self.spans], fill)

    def advantages(self, fill: float = 0.0) -> list[float]:
        """Return for each token its advantage, or `fill` if it is not trained on."""
        pairs = zip(self.spans, self.marks, strict=True)
        return self._per_token([(mark or 0.0,) * len(s.logprobs) for s, mark in pairs], fill)

    def _per_token(self, values: Sequence[Sequence[float]], fill: float) -> list[float]:
        result: list[float] = []
        for span, is_trained, own in zip(self.spans, self.trained, values, strict=True):
            if is_trained:
                result += [*([fill] * span.scaffold), *own]
            else:
                result += [fill] * len(span.token_ids)
        return result


def trained_sequences(tree: Sequence[Sample], rendering: Rendering) -> Iterator[TrainedSequence]:
    """Yield the sequences of one tree's samples that have a token to train on.

    A sampled token is trained on if it has a log-probability and an advantage; without an
    estimator (`none`), if it has a log-probability. `once`: only the first leaf trains on a shared
    message, with the mean advantage of the leaves below it. `per_leaf`: each leaf trains on it.
    """
    ids = list(dict.fromkeys(span.id for sample in tree for span in sample.spans))
    means = dict(zip(ids, mean_advantages(tree, ids, rendering.estimator), strict=True))
    done: set[str] = set()
    for sample in tree:
        for sequence in sample.sequences(rendering.estimator):
            once = rendering.shared_prefix == "once"
            marks = tuple(means[s.id] for s in sequence.spans) if once else sequence.advantages
            trained = tuple(
                span.is_trainable
                and span.id not in done
                and (rendering.estimator == "none" or mark is not None)
                for span, mark in zip(sequence.spans, marks, strict=True)
            )
            if once:
                done |= {s.id for s, on in zip(sequence.spans, trained, strict=True) if on}
            if any(trained):
                yield TrainedSequence(sample, sequence.spans, trained, marks)


def provenance(sample: Sample, rendering: Rendering) -> dict[str, Any]:
    """Return what a trainer must know of a sample beside its tokens, as JSON."""
    return {
        "tree": sample.tree,
        "leaf": sample.leaf,
        "branch": list(sample.branch),
        "task_id": sample.task_id,
        "group": sample.group.id,
        "reward": sample.reward,
        "answer": sample.answer,
        "answer_weight": sample.answer_weight,
        "weighting": sample.weighting,
        "grading": sample.grading,
        "integrity": sample.integrity,
        "fidelity": sample.fidelity,
        "is_truncated": sample.is_truncated,
        "stop_condition": sample.stop_condition,
        "policy_versions": list(sample.policy_versions),
        "breaks": sample.breaks,
        "repeated_tokens": sample.repeated_tokens,
        "missing_logprobs": sample.missing_logprobs,
        "store_generation": sample.store_generation,
        "imported_from": sample.imported_from,
        "evidence": dict(sample.evidence),
        "advantage": rendering.estimator,
        "shared_prefix": rendering.shared_prefix,
    }


def sampling_temperature(sample: Sample) -> Mapping[str, float]:
    """Return `{"temperature": t}` if all trainable messages were sampled with the same one."""
    found = {span.temperature for span in sample.spans if span.is_trainable}
    known = [each for each in found if each is not None]
    return {"temperature": known[0]} if len(found) == len(known) == 1 else {}
