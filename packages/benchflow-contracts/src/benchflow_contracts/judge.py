"""The model that rewards may ask: its endpoint, and what its calls cost."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from ._model import RareModel
from .door import Endpoint
from .gateway import ModelCall
from .step import Usage


@dataclass(frozen=True, slots=True)
class JudgeModel:
    """A model endpoint for a reward, on this host, behind the gateway.

    The gateway records each call under `judge/` of the rollout, apart from the agent's calls, adds
    the operator's key, and asks the model of the configuration whatever model a request names. If
    the last try of a request failed, the node has no reward, whatever the reward returned.
    """

    endpoint: Endpoint
    """Append the path of the protocol to its URL, such as `/chat/completions` or `/messages`."""
    model: str
    """The name of the model, for the requests."""


class JudgeUse(RareModel):
    """What rewards used of the judge's model. It is not part of the cost of the agent."""

    calls: int = Field(default=0, ge=0)
    usage: Usage = Usage()
    cost_usd: float | None = Field(default=None, ge=0)
    """`None`: no cost is known."""

    @classmethod
    def of(cls, calls: Sequence[ModelCall]) -> "JudgeUse":
        """Return the sum of recorded calls."""
        return cls(
            calls=len(calls),
            usage=_sum(tuple(call.usage for call in calls)),
            cost_usd=_cost(tuple(call.cost_usd for call in calls)),
        )

    def __add__(self, other: "JudgeUse") -> "JudgeUse":
        """Return the sum of both."""
        return JudgeUse(
            calls=self.calls + other.calls,
            usage=_sum((self.usage, other.usage)),
            cost_usd=_cost((self.cost_usd, other.cost_usd)),
        )


def _sum(usages: Sequence[Usage]) -> Usage:
    return Usage(
        input_tokens=sum(usage.input_tokens for usage in usages),
        output_tokens=sum(usage.output_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
    )


def _cost(costs: Sequence[float | None]) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known else None
