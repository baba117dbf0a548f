"""The budget of a job: tokens and cost of all its attempts."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class Budget:
    """Counts what attempts used, and says when a limit is reached."""

    cost_usd: float | None = None
    tokens: int | None = None
    used_usd: float = 0
    used_tokens: float = 0

    def add(self, measured: Mapping[str, float]) -> None:
        """Add the measured numbers of an attempt. What is not known counts as nothing."""
        self.used_usd += measured.get("cost_usd", 0)
        self.used_tokens += measured.get("tokens_in", 0) + measured.get("tokens_out", 0)

    def change(self, cost_usd: float | None, tokens: int | None) -> None:
        """Set limits; `None` leaves a limit as it is."""
        self.cost_usd = self.cost_usd if cost_usd is None else cost_usd
        self.tokens = self.tokens if tokens is None else tokens

    def spent(self) -> str | None:
        """Return which limit is reached, in words; `None` if none is."""
        if self.cost_usd is not None and self.used_usd >= self.cost_usd:
            return f"the budget is used up: {self.used_usd:.4g} of {self.cost_usd:g} US dollars"
        if self.tokens is not None and self.used_tokens >= self.tokens:
            return f"the budget is used up: {self.used_tokens:.0f} of {self.tokens} tokens"
        return None
