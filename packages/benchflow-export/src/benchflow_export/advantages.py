"""Advantages that need several trees, or several leaves of one tree."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from benchflow_contracts import AdvantageEstimator, Sample
from benchflow_kernel import inter_advantages


class GroupReturns:
    """Collects the returns of samples by group, for their `inter` advantages.

    Two passes over the samples are necessary, because the returns of a group are known only after
    its last tree.
    """

    def __init__(self, group_of: Callable[[Sample], str] = lambda sample: sample.group.id) -> None:
        self._group_of = group_of
        self._returns: dict[str, dict[str, dict[str, float]]] = {}
        self._weights: dict[tuple[str, str], float] = {}

    def add(self, sample: Sample) -> None:
        """Add the return of a sample."""
        trees = self._returns.setdefault(self._group_of(sample), {})
        trees.setdefault(sample.tree, {})[sample.leaf] = sample.reward
        if sample.answer_weight is not None:
            self._weights[sample.tree, sample.leaf] = sample.answer_weight

    def advantages(self) -> dict[tuple[str, str], float]:
        """Return the `inter` advantage of each leaf, by rollout id and leaf id."""
        inter: dict[tuple[str, str], float] = {}
        for group in self._returns.values():
            inter |= inter_advantages(group, self._weights)
        return inter


def with_group_advantages(
    samples: Iterable[Sample], group_of: Callable[[Sample], str] = lambda sample: sample.group.id
) -> list[Sample]:
    """Return the samples with `inter` and `intra+inter`, over all trees of their groups.

    A group of one tree does not have `inter`: its spans have `None`, and `intra+inter` is `intra`.
    """
    samples = list(samples)
    returns = GroupReturns(group_of)
    for sample in samples:
        returns.add(sample)
    inter = returns.advantages()
    return [add_inter(sample, inter) for sample in samples]


def add_inter(sample: Sample, inter: Mapping[tuple[str, str], float]) -> Sample:
    """Return the sample with `inter` and `intra+inter`; see `GroupReturns.advantages`."""
    value, n = inter.get((sample.tree, sample.leaf)), len(sample.spans)
    intra = sample.advantages.get("intra", (None,) * n)
    both = [value if each is None else each + (value or 0.0) for each in intra]
    added = {"inter": (value,) * n, "intra+inter": tuple(both)}
    return sample.model_copy(update={"advantages": {**sample.advantages, **added}})


def mean_advantages(
    samples: Sequence[Sample], spans: Iterable[str], estimator: AdvantageEstimator
) -> list[float | None]:
    """Return for each span the mean advantage of the samples that have it, by answer weight.

    If the user gives no answer of these samples, they count equally.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for sample in samples:
        weight = 1.0 if sample.answer_weight is None else sample.answer_weight
        advantages = sample.advantages.get(estimator, ())
        for span, advantage in zip(sample.spans, advantages, strict=False):
            if advantage is not None:
                found.setdefault(span.id, []).append((weight, advantage))
    means = {span: _mean(weighted) for span, weighted in found.items()}
    return [means.get(span) for span in spans]


def _mean(weighted: Sequence[tuple[float, float]]) -> float:
    total = sum(weight for weight, _ in weighted)
    if not total:
        return sum(value for _, value in weighted) / len(weighted)
    return sum(weight * value for weight, value in weighted) / total
