"""Numbers of one production rollout that need no reward: errors, loops, questions, tokens, cost."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from benchflow_contracts import Step
from benchflow_traces import ObservedRollout

LOOP_LENGTH = 3
"""The same tool call so many times running is a loop."""


@dataclass(frozen=True, slots=True)
class RolloutFacts:
    """What is counted of one rollout."""

    steps: int
    tool_calls: int
    tool_errors: int
    loops: int
    asks: int
    input_tokens: int | None
    """None if one of the model calls did not report its tokens: unknown is never 0."""
    output_tokens: int | None
    cost: float | None
    """In the currency of the prices; None if tokens or a price are unknown."""


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one million tokens."""

    input: float
    output: float
    cached: float | None = None
    """Of cached input tokens; None is the price of `input`."""


def facts_of(rollout: ObservedRollout, prices: Mapping[str, Price]) -> RolloutFacts:
    """Count `rollout`. `prices` are by the name of the model."""
    steps = rollout.steps
    seen = [one for step in steps for one in step.observations]
    called = [step for step in steps if "model" in step.meta]
    known = bool(called) and all(step.usage is not None for step in called)
    usages = [step.usage for step in called if step.usage is not None]
    return RolloutFacts(
        steps=len(steps),
        tool_calls=sum(len(step.tool_calls) for step in steps),
        tool_errors=sum(one.status == "failed" for one in seen),
        loops=count_loops(steps),
        asks=rollout.questions,
        input_tokens=sum(usage.input_tokens for usage in usages) if known else None,
        output_tokens=sum(usage.output_tokens for usage in usages) if known else None,
        cost=_cost(called, prices) if known else None,
    )


def count_loops(steps: Iterable[Step]) -> int:
    """Return how often a tool call with equal arguments was made `LOOP_LENGTH` times running."""
    loops = length = 0
    last: tuple[str | None, object] | None = None
    for step in steps:
        for call in step.tool_calls:
            made = (call.name, call.raw_input)
            length = length + 1 if made == last else 1
            last = made
            loops += length == LOOP_LENGTH
    return loops


def _cost(steps: Iterable[Step], prices: Mapping[str, Price]) -> float | None:
    total = 0.0
    for step in steps:
        price = prices.get(str(step.meta.get("model")))
        if price is None or step.usage is None:
            return None
        fresh = step.usage.input_tokens - step.usage.cached_tokens
        cached = price.input if price.cached is None else price.cached
        total += fresh * price.input + step.usage.cached_tokens * cached
        total += step.usage.output_tokens * price.output
    return total / 1e6
