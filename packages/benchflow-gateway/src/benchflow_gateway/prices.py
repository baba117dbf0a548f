"""Prices of tokens."""

from collections.abc import Mapping

from benchflow_contracts import Model, Usage
from pydantic import Field


class Price(Model):
    """US dollars per million tokens."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached: float | None = Field(default=None, ge=0)
    """Price of cached input (default: the price of `input`)."""

    def of(self, usage: Usage) -> float:
        """Return the cost of `usage` in US dollars."""
        cached = self.input if self.cached is None else self.cached
        fresh = usage.input_tokens - usage.cached_tokens
        cost = fresh * self.input + usage.cached_tokens * cached
        return (cost + usage.output_tokens * self.output) / 1_000_000


PriceTable = Mapping[str, Price]
"""Prices by the start of a model's name. The longest match counts."""


def price_of(model: str | None, table: PriceTable) -> Price | None:
    """Return the price of `model`; `None` if the table does not have it."""
    matches = [start for start in table if (model or "").startswith(start)]
    return table[max(matches, key=len)] if matches else None
