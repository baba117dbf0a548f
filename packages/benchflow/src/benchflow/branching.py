"""The branch policy that an operator's flags describe."""

from typing import TYPE_CHECKING, Literal

from benchflow_contracts import (
    AskUserBranch,
    BestOfBranch,
    BranchBudget,
    BranchPolicy,
    GroupBranch,
    UsageError,
    ValueBranch,
)

if TYPE_CHECKING:
    from .options import RunOptions

BranchKind = Literal["ask-user", "group", "value", "best-of"]


def policy_of(options: "RunOptions") -> BranchPolicy | None:
    """Return the policy, or `None` when nothing is to be forked.

    Raises:
        UsageError: Children are to fork where nothing forks.
    """
    if options.branch is None:
        if options.branch_then is not None:
            raise UsageError("--branch-then needs --branch", hint="say how the root forks")
        return None
    then = None if options.branch_then is None else _policy(options.branch_then, options, None)
    return _policy(options.branch, options, then)


def _policy(kind: BranchKind, options: "RunOptions", then: BranchPolicy | None) -> BranchPolicy:
    budget, require = _budget(options), options.branch_require
    n, at = options.branch_n, options.branch_at
    match kind:
        case "ask-user":
            return AskUserBranch(budget=budget, require=require, then=then)
        case "group":
            return GroupBranch(budget=budget, require=require, then=then, n=n, at=at)
        case "best-of":
            return BestOfBranch(budget=budget, require=require, then=then, n=n, at=at)
        case "value":
            every = options.branch_every
            return ValueBranch(budget=budget, require=require, then=then, n=n, every=every)


def _budget(options: "RunOptions") -> BranchBudget:
    return BranchBudget(
        max_children=options.branch_children,
        max_depth=options.branch_depth,
        max_forks=options.branch_forks,
        concurrency=options.branch_concurrency,
        wall_sec=options.branch_wall_sec,
        tokens=options.branch_tokens,
        disk_mb=options.branch_disk_mb,
        memory_mb=options.branch_memory_mb,
    )
