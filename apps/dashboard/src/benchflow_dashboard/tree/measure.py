"""The number that the tree shows at each node: V, advantage, cost or time."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from benchflow_contracts import ModelCall, RolloutNode, RolloutTree, Step, Value

from .ramp import step_of

Mode = Literal["value", "advantage", "cost", "time"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
UNKNOWN: Final = "\N{EN DASH}"
"""The label of a number that nothing reported. It is not 0."""
_MOST_TOKENS: Final = 10**15


@dataclass(frozen=True, slots=True)
class Measure:
    """One mode: a label and a CSS class by node id. A node without a number has neither."""

    mode: Mode
    labels: Mapping[str, str]
    classes: Mapping[str, str]
    unit: str
    """The name of the number, for the legend and for screen readers, such as `V`."""
    low: float
    high: float
    """The ends of the ramp."""


def measure(
    tree: RolloutTree,
    mode: Mode,
    values: Mapping[str, Value],
    calls: Mapping[str, ModelCall] | None = None,
) -> Measure:
    """Return the numbers of `mode` for every node of `tree`.

    `values` has V by node id. The cost of a node is the cost of the step that led to it: in dollars
    if the recorded `calls` have prices, else in tokens as the agent reported them.
    """
    if mode == "value":
        return _values(values)
    if mode == "advantage":
        return _advantages(tree)
    if mode == "cost":
        return _costs(tree, calls or {})
    return _times(tree)


def number(value: float) -> str:
    """Return a number of the tree: `.42`, `1.00` or `-.17`."""
    text = f"{value:.2f}"
    if text.startswith(("0.", "-0.")):
        text = text.replace("0.", ".", 1)
    return ".00" if text == "-.00" else text


def signed(value: float) -> str:
    """Return a difference with its sign: `+.58`, `-.42` or `+.00`."""
    text = number(value)
    return text if text.startswith("-") else f"+{text}"


def quantity(value: float) -> str:
    """Return a large number with at most four characters, such as `950`, `1.2k` or `34M`."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            scaled = value / size
            return f"{scaled:.1f}{unit}" if scaled < 9.95 else f"{scaled:.0f}{unit}"
    return f"{value:.0f}"


def seconds(value: float) -> str:
    """Return a duration such as `12ms`, `4.2s` or `3.1min`."""
    if value < 1:
        return f"{value * 1000:.0f}ms"
    return f"{value:.1f}s" if value < 100 else f"{value / 60:.1f}min"


def dollars(value: float) -> str:
    """Return a price with two digits or more: `$.04`, `$1.20` or `$.0003`."""
    text = f"{value:.2f}" if value >= 0.01 or value == 0 else f"{value:.4f}"
    return "$" + text.removeprefix("0")


def tokens_of(step: Step) -> int | None:
    """Return the tokens of a step; `None` if nothing reported them."""
    if step.usage is None:
        return None
    # An agent may report an integer that is not a float.
    return min(step.usage.input_tokens + step.usage.output_tokens, _MOST_TOKENS)


def cost_of(step: Step, calls: Mapping[str, ModelCall]) -> float | None:
    """Return the dollars of a step's model calls; `None` unless every call has a price."""
    prices = [calls[name].cost_usd for name in step.model_calls if name in calls]
    known = [price for price in prices if price is not None]
    return sum(known) if known and len(known) == len(step.model_calls) else None


def _values(values: Mapping[str, Value]) -> Measure:
    """Return V with its ramp: from 0 to 1, or wider if a value is outside."""
    means = {name: value.mean for name, value in values.items()}
    low, high = min(means.values(), default=0.0), max(means.values(), default=1.0)
    labels = {name: number(mean) for name, mean in means.items()}
    return _ramped("value", labels, means, "V", min(low, 0.0), max(high, 1.0))


def _advantages(tree: RolloutTree) -> Measure:
    steps = {
        node.id: node.credit.step
        for node in tree.nodes
        if node.credit is not None and node.credit.step is not None
    }
    labels = {name: signed(value) for name, value in steps.items()}
    classes = {name: _sign_class(label) for name, label in labels.items()}
    low, high = min(steps.values(), default=0.0), max(steps.values(), default=0.0)
    return Measure("advantage", labels, classes, "advantage", low, high)


def _sign_class(label: str) -> str:
    if label == "+.00":
        return "even"
    return "worse" if label.startswith("-") else "better"


def _costs(tree: RolloutTree, calls: Mapping[str, ModelCall]) -> Measure:
    steps = list(_steps(tree.nodes))
    prices = {name: cost for name, step in steps if (cost := cost_of(step, calls)) is not None}
    if prices:
        labels = {name: dollars(price) for name, price in prices.items()}
        return _ramped("cost", labels, prices, "cost in $", 0.0, max(prices.values()))
    tokens = {name: float(count) for name, step in steps if (count := tokens_of(step)) is not None}
    labels = {name: quantity(count) for name, count in tokens.items()}
    return _ramped("cost", labels, tokens, "tokens", 0.0, max(tokens.values(), default=1.0))


def _times(tree: RolloutTree) -> Measure:
    took = {name: max(step.finished_at - step.started_at, 0.0) for name, step in _steps(tree.nodes)}
    labels = {name: seconds(value) for name, value in took.items()}
    return _ramped("time", labels, took, "time of the step", 0.0, max(took.values(), default=1.0))


def _steps(nodes: Iterable[RolloutNode]) -> Iterable[tuple[str, Step]]:
    return ((node.id, node.step) for node in nodes if node.step is not None)


def _ramped(
    mode: Mode,
    labels: Mapping[str, str],
    values: Mapping[str, float],
    unit: str,
    low: float,
    high: float,
) -> Measure:
    classes = {name: f"ramp-{step_of(value, low, high)}" for name, value in values.items()}
    return Measure(mode, labels, classes, unit, low, high)
