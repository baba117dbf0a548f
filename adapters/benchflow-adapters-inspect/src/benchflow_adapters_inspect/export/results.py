"""The scores of a log: metrics over the samples, each the mean of its epochs."""

from collections.abc import Mapping
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from .values import Json


class ScoreTotals:
    """Collects the scores of the epochs, by scorer and sample."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, list[float]]] = {}
        self._samples = 0
        self._failed = 0

    def add(self, sample: str, scores: Mapping[str, Any], *, failed: bool) -> None:
        """Add the scores of one epoch."""
        self._samples += 1
        self._failed += failed
        for name, score in scores.items():
            self._values.setdefault(name, {}).setdefault(sample, []).append(score["value"])

    def scorers(self) -> list[Json]:
        """Return the scorers of the specification."""
        metrics: list[Json] = [{"name": "mean", "options": {}}, {"name": "stderr", "options": {}}]
        return [
            {"name": name, "options": {}, "metrics": metrics, "metadata": {}}
            for name in self._values
        ]

    def results(self) -> Json:
        """Return the metrics. The standard error is that of the mean over the samples."""
        return {
            "total_samples": self._samples,
            "completed_samples": self._samples - self._failed,
            "scores": [self._score(name, values) for name, values in self._values.items()],
        }

    def _score(self, name: str, values: Mapping[str, list[float]]) -> Json:
        means = [fmean(each) for each in values.values()]
        error = stdev(means) / sqrt(len(means)) if len(means) > 1 else 0.0
        scored = sum(len(each) for each in values.values())
        return {
            "name": name,
            "scorer": name,
            "reducer": "mean",
            "scored_samples": scored,
            "unscored_samples": self._samples - scored,
            "params": {},
            "metrics": {
                "mean": {"name": "mean", "value": fmean(means), "params": {}},
                "stderr": {"name": "stderr", "value": error, "params": {}},
            },
        }

    def reductions(self) -> list[Json]:
        """Return the mean score of each sample."""
        return [
            {
                "scorer": name,
                "reducer": "mean",
                "samples": [
                    {"value": fmean(each), "history": [], "sample_id": sample}
                    for sample, each in values.items()
                ],
            }
            for name, values in self._values.items()
        ]
