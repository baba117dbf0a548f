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

    def add(self, sample: Sample) -> None:
        """Add the return of a sample."""
        trees = self._returns.setdefault(self._group_of(sample), {})
        trees.setdefault(sample.tree, {})[sample.leaf] = sample.reward

    def advantages(self) -> dict[tuple[str, str], float]:
        """Return the `inter` advantage of each leaf, by rollout id and leaf id."""
        inter: dict[tuple[str, str], float] = {}
        for group in self._returns.values():
            inter |= inter_advantages(group)
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
    """Return for each span the mean advantage of the samples that have it, by answer weight."""
    sums: dict[str, tuple[float, float]] = {}
    for sample in samples:
        advantages = sample.advantages.get(estimator, ())
        # Counterfactual leaves that were asked for count equally.
        weight = sample.answer_weight or 1.0
        for span, advantage in zip(sample.spans, advantages, strict=False):
            if advantage is not None:
                total, weights = sums.get(span.id, (0.0, 0.0))
                sums[span.id] = (total + weight * advantage, weights + weight)
    means = {span: total / weights for span, (total, weights) in sums.items()}
    return [means.get(span) for span in spans]
