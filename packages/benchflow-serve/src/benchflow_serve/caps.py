"""The operator's limits of one request, and the budget of the calls of a rollout."""

from collections.abc import Iterator, Mapping

from benchflow_contracts import BenchFlowError, Model, UsageReported
from benchflow_kernel.config import AskUserBranch, BranchPolicy, CallerBranch, ValueBranch
from benchflow_serve_client import RolloutBudget, RolloutRequest
from pydantic import Field

from .problems import LimitExceededError

_MANY = 2**62
"""More leaves than any tree has. Greater powers are not computed."""


class RequestCaps(Model):
    """The greatest values that a request may ask for. `None` sets no limit."""

    leaves: int | None = Field(default=256, ge=1)
    """Leaves that the branch policy of a request can have."""
    forks: int | None = Field(default=None, ge=1)
    """Forks that the branch policy of a request can have."""
    wall_sec: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Seconds that a rollout may run. Also the deadline of a request without one."""
    tokens: int | None = Field(default=None, ge=1)
    """Tokens of the model calls of a rollout. Also the budget of a request without one."""
    cost_usd: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Cost of the model calls of a rollout. Also the budget of a request without one."""

    def check(self, request: RolloutRequest, branch: BranchPolicy | None) -> None:
        """Refuse a request above a limit. `branch` is the policy that the request sets.

        Raises:
            LimitExceededError: A value is above its limit. The error names the limit.
        """
        leaves, forks = (1, 0) if branch is None else tree_size(branch)
        rows: list[tuple[str, float | None, float | None, str]] = [
            ("leaves", leaves, self.leaves, "branch"),
            ("forks", forks, self.forks, "branch"),
            ("wall_sec", request.deadline_sec, self.wall_sec, "deadline_sec"),
            ("tokens", request.budget.tokens, self.tokens, "budget.tokens"),
            ("cost_usd", request.budget.cost_usd, self.cost_usd, "budget.cost_usd"),
        ]
        for name, value, cap, where in rows:
            if value is not None and cap is not None and value > cap:
                shown = f"at least {_MANY}" if value >= _MANY else f"{value:g}"
                raise LimitExceededError(
                    f"{where}: the request allows {shown} {name}, and the service {cap:g}",
                    hint=_HINTS.get(name, f"ask for at most {cap:g}")
                    + f"; the operator sets the limit with --cap-{name.replace('_', '-')}",
                    where=where,
                )

    def deadline(self, request: RolloutRequest) -> float | None:
        """Return the longest run time of a request."""
        return self.wall_sec if request.deadline_sec is None else request.deadline_sec

    def budget(self, request: RolloutRequest) -> RolloutBudget:
        """Return what the calls of a request may use."""
        own = request.budget
        return RolloutBudget(
            tokens=self.tokens if own.tokens is None else own.tokens,
            cost_usd=self.cost_usd if own.cost_usd is None else own.cost_usd,
        )


_HINTS: Mapping[str, str] = dict.fromkeys(
    ("leaves", "forks"), "set fewer children, or a smaller max_depth or max_forks in branch.budget"
)


def tree_size(policy: BranchPolicy) -> tuple[int, int]:
    """Return upper bounds of the leaves and the forks of one tree."""
    leaves, forks, widest = 1, 0, 2
    for level in _levels(policy):
        width, depth = _width(level), level.budget.max_depth
        widest = max(widest, width)
        own = _power(width, depth)
        # The forks of a full tree, below each leaf of the level before.
        forks = min(_MANY, forks + leaves * ((own - 1) // (width - 1)))
        leaves = min(_MANY, leaves * own)
    if (most := policy.budget.max_forks) is not None:
        forks = min(forks, most)
        leaves = min(leaves, 1 + forks * (widest - 1))
    return leaves, forks


def _levels(policy: BranchPolicy | None) -> Iterator[BranchPolicy]:
    while policy is not None:
        yield policy
        policy = policy.then


def _width(policy: BranchPolicy) -> int:
    if isinstance(policy, AskUserBranch | CallerBranch):
        return policy.budget.max_children
    # The path of `value` continues beside its children.
    return policy.n + 1 if isinstance(policy, ValueBranch) else max(2, policy.n)


def _power(width: int, depth: int) -> int:
    return _MANY if depth * width.bit_length() > 128 else min(_MANY, width**depth)


class BudgetSpentError(BenchFlowError):
    """The model calls of the rollout used more than its budget."""

    boundary = "usage"
    default_culprit = "operator"
    default_hint = "give a greater budget, or let the agent stop earlier"


class SpendingTracker:
    """Adds up the recorded model calls of one run."""

    def __init__(self, budget: RolloutBudget) -> None:
        self._budget = budget
        self.tokens = 0
        self.cost_usd = 0.0

    def add(self, report: UsageReported) -> BudgetSpentError | None:
        """Count a call. Return the error if the budget is used up.

        A call whose cost is unknown counts only with its tokens.
        """
        if report.source != "gateway":
            return None  # Its calls are counted one by one.
        if report.usage is not None:
            self.tokens += report.usage.input_tokens + report.usage.output_tokens
        self.cost_usd += report.cost_usd or 0.0
        budget = self._budget
        if budget.tokens is not None and self.tokens > budget.tokens:
            return BudgetSpentError(
                f"the rollout used {self.tokens} tokens, and its budget is {budget.tokens}"
            )
        if budget.cost_usd is not None and self.cost_usd > budget.cost_usd:
            return BudgetSpentError(
                f"the rollout cost {self.cost_usd:.4f} USD, and its budget is {budget.cost_usd:g}"
            )
        return None
