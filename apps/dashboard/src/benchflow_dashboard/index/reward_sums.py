"""The reward signals of one rollout, summed by space, granularity and step."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, cast, get_args

from benchflow_contracts import Granularity, Space

WHOLE: Final = -1
"""In the place of a step: the signals of all steps, and those without a step."""
BINS: Final = 8
_STEPS: Final = 1_000
"""Signals of later steps are in no line; `WHOLE` has them."""
_GREATEST: Final = 1e100
_SPACES: Final = frozenset(get_args(Space))
_GRANULARITIES: Final = frozenset(get_args(Granularity))

RewardSums = dict[str, list[float]]
"""By `space granularity step`: the number of values, their sum, and the unscored verdicts."""


class SignalSum(NamedTuple):
    """The mean signal of one rollout."""

    space: str
    granularity: str
    step: int
    mean: float | None
    """`None` if each verdict is unscored."""
    signals: int
    unscored: int


def add_verdict(sums: RewardSums, result: Mapping[str, Any], steps: Mapping[str, int]) -> None:
    """Add a verdict and its signals. `steps` has the index of each step on its path.

    A tampered verdict is unscored, and its signals do not count. A value that cannot be read is
    left out.
    """
    integrity = _mapping(_mapping(result.get("meta")).get("integrity"))
    is_tampered = integrity.get("grade") == "tampered"
    reward = None if is_tampered else result.get("reward")
    _add(sums, result, WHOLE, reward)
    if is_tampered:
        return
    events = result.get("events")
    for event in cast("list[object]", events) if isinstance(events, list) else []:
        signal = _mapping(event)
        value = signal.get("value")
        if value is None:
            continue
        _add(sums, signal, WHOLE, value)
        step = steps.get(str(signal.get("step_id")), _STEPS)
        if step < _STEPS:
            _add(sums, signal, step, value)


def _add(sums: RewardSums, signal: Mapping[str, Any], step: int, value: object) -> None:
    space, granularity = signal.get("space", "output"), signal.get("granularity", "terminal")
    if space not in _SPACES or granularity not in _GRANULARITIES:
        return
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    entry = sums.setdefault(f"{space} {granularity} {step}", [0, 0.0, 0])
    # Squares of greater values, and values that are not finite, would spoil the sums of all.
    if number is not None and abs(number) < _GREATEST:
        entry[0] += 1
        entry[1] += float(number)
    else:
        entry[2] += 1


def reward_rows(sums: RewardSums) -> Iterator[SignalSum]:
    """Yield the rows of the index."""
    for key, (signals, total, unscored) in sums.items():
        space, granularity, step = key.split(" ")
        mean = total / signals if signals else None
        yield SignalSum(space, granularity, int(step), mean, int(signals), int(unscored))


def bin_of(mean: float) -> int:
    """Return the bin of a mean between 0 and 1. Means outside are in the outer bins."""
    return min(max(int(mean * BINS), 0), BINS - 1)


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
