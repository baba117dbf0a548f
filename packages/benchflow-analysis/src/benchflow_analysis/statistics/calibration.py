"""Calibration of V(s): how well the value of a node predicts independent returns."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchflow_contracts import Model


@dataclass(frozen=True, slots=True)
class Prediction:
    """A value V, and the mean of returns that had no part in V."""

    predicted: float
    observed: float


class CalibrationBin(Model):
    """The predictions from `low` to `high`."""

    low: float
    high: float
    n: int
    predicted: float
    """The mean prediction."""
    observed: float
    """The mean observation. Of calibrated values, it is near `predicted`."""


class Calibration(Model):
    """How predictions and observations agree."""

    n: int
    bias: float
    """Mean of predicted - observed."""
    rmse: float
    """The root of the mean squared difference."""
    bins: tuple[CalibrationBin, ...]
    """Without empty bins."""


def calibrate(predictions: Sequence[Prediction], bins: int = 5) -> Calibration | None:
    """Compare predictions with observations in bins of equal width; `None` without any."""
    if not predictions:
        return None
    low = min(each.predicted for each in predictions)
    width = (max(each.predicted for each in predictions) - low) / bins or 1.0
    groups: dict[int, list[Prediction]] = {}
    for each in predictions:
        place = min(bins - 1, int((each.predicted - low) / width))
        groups.setdefault(place, []).append(each)
    errors = [each.predicted - each.observed for each in predictions]
    return Calibration(
        n=len(predictions),
        bias=fmean(errors),
        rmse=math.sqrt(fmean(error * error for error in errors)),
        bins=tuple(
            CalibrationBin(
                low=low + place * width,
                high=low + (place + 1) * width,
                n=len(group),
                predicted=fmean(each.predicted for each in group),
                observed=fmean(each.observed for each in group),
            )
            for place, group in sorted(groups.items())
        ),
    )


def held_out(values: Mapping[str, Sequence[float]]) -> list[Prediction]:
    """Return each value with the mean of the others of its task: rollouts are independent."""
    predictions = list[Prediction]()
    for group in values.values():
        if len(group) < 2:
            continue
        total, least, most = math.fsum(group), min(group), max(group)
        for value in group:
            mean = (total - value) / (len(group) - 1)
            # The rounding of a difference must not lead out of the range of the values.
            predictions.append(Prediction(value, min(max(mean, least), most)))
    return predictions
