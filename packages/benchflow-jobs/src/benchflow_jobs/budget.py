"""The budget of a job: tokens and cost of all its attempts."""

from collections.abc import Mapping
from dataclasses import dataclass

from benchflow_contracts import JudgeUse

SANDBOX_COST = "sandbox_usd"
"""The measured number of an attempt: what its sandboxes cost."""
JUDGE_COST = "judge_usd"
"""What the calls of rewards to the judge's model cost."""
_JUDGE_TOKENS = "judge_tokens"


def measured_judge(use: JudgeUse | None) -> dict[str, float]:
    """Return what rewards used of the judge's model, as measured numbers."""
    if use is None or not use.calls:
        return {}
    tokens = {_JUDGE_TOKENS: float(use.usage.input_tokens + use.usage.output_tokens)}
    return tokens if use.cost_usd is None else {**tokens, JUDGE_COST: use.cost_usd}


@dataclass(slots=True)
class Budget:
    """Counts what attempts used, and says when a limit is reached, or would be passed."""

    cost_usd: float | None = None
    tokens: int | None = None
    used_usd: float = 0
    """Of model calls, also those to the judge, and of sandboxes."""
    sandbox_usd: float = 0
    """The part of the sandboxes."""
    used_tokens: float = 0
    ended: int = 0
    """The attempts whose cost is in `used_usd`, in this run of the job."""
    ended_usd: float = 0
    """The cost of these attempts."""

    def add(self, measured: Mapping[str, float]) -> None:
        """Add the measured numbers of earlier attempts. What is not known counts as nothing."""
        sandboxes = measured.get(SANDBOX_COST, 0)
        self.sandbox_usd += sandboxes
        self.used_usd += measured.get("cost_usd", 0) + measured.get(JUDGE_COST, 0) + sandboxes
        tokens = ("tokens_in", "tokens_out", _JUDGE_TOKENS)
        self.used_tokens += sum(measured.get(name, 0) for name in tokens)

    def add_attempt(self, measured: Mapping[str, float]) -> None:
        """Add the measured numbers of one attempt that has ended in this run."""
        before = self.used_usd
        self.add(measured)
        self.ended += 1
        self.ended_usd += self.used_usd - before

    def change(self, cost_usd: float | None, tokens: int | None) -> None:
        """Set limits; `None` leaves a limit as it is."""
        self.cost_usd = self.cost_usd if cost_usd is None else cost_usd
        self.tokens = self.tokens if tokens is None else tokens

    def spent(self, running: int = 0, running_usd: float = 0) -> str | None:
        """Return why no further attempt may start, in words; `None` if one may.

        `running` attempts have cost `running_usd` so far. Each is expected to cost as much as the
        attempts that have ended, and so is the next one.
        """
        if self.cost_usd is not None:
            running = max(running, 0)
            mean = self.ended_usd / self.ended if self.ended else 0
            committed = self.used_usd + max(running_usd, running * mean)
            if self.used_usd + running_usd >= self.cost_usd or committed + mean > self.cost_usd:
                return self._cost_reason(committed - self.used_usd, mean)
        if self.tokens is not None and self.used_tokens >= self.tokens:
            return f"the budget is used up: {self.used_tokens:.0f} of {self.tokens} tokens"
        return None

    def _cost_reason(self, running: float, mean: float) -> str:
        parts = [f"{self.used_usd:.4g} of {self.cost_usd:g} US dollars"]
        if running:
            parts.append(f"{running:.4g} for what runs")
        if mean:
            parts.append(f"about {mean:.4g} for each further rollout")
        reason = f"the budget is used up: {', '.join(parts)}"
        return f"CostLimitError: {reason}; a larger limit (--max-cost) continues the job"
