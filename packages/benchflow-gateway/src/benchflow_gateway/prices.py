"""What tokens cost."""

from collections.abc import Mapping

from benchflow_contracts import Model, Usage
from pydantic import Field


class Price(Model):
    """US dollars per million tokens."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached: float | None = Field(default=None, ge=0)
    """Of input that the upstream had in its cache; as `input` when not given."""

    def of(self, usage: Usage) -> float:
        """Return what `usage` costs, in US dollars."""
        cached = self.input if self.cached is None else self.cached
        fresh = usage.input_tokens - usage.cached_tokens
        spent = fresh * self.input + usage.cached_tokens * cached
        return (spent + usage.output_tokens * self.output) / 1_000_000


PriceTable = Mapping[str, Price]
"""By the start of a model's name; the longest that fits counts."""


def price_of(model: str | None, table: PriceTable) -> Price | None:
    """Return the price of `model`, `None` when the table does not know it."""
    fitting = [start for start in table if (model or "").startswith(start)]
    return table[max(fitting, key=len)] if fitting else None
