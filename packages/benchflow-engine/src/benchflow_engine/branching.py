"""Build the branch policy from an operator's flags."""

from typing import TYPE_CHECKING, Any, Literal

from benchflow_contracts import UsageError
from benchflow_kernel import (
    AskUserBranch,
    BestOfBranch,
    BranchBudget,
    BranchPolicy,
    GroupBranch,
    ValueBranch,
)

if TYPE_CHECKING:
    from .options import RunOptions

BranchKind = Literal["ask-user", "group", "value", "best-of"]


def policy_of(options: "RunOptions") -> BranchPolicy | None:
    """Return the policy, or `None` without forks.

    Raises:
        UsageError: A flag concerns forks without a fork policy, or contradicts another flag.
    """
    if options.branch is None:
        given = _given(options)
        if given:
            raise UsageError(f"{given[0]} needs --branch", hint="give the fork policy of the root")
        return None
    then = None if options.branch_then is None else _policy(options.branch_then, options, None)
    return _policy(options.branch, options, then)


def unforked(options: "RunOptions") -> dict[str, Any]:
    """Return the update that resets every fork option of `options`."""
    fields = type(options).model_fields
    return {name: fields[name].default for name in fields if name.startswith("branch")}


def _given(options: "RunOptions") -> list[str]:
    plain = unforked(options)
    names = [name for name, default in plain.items() if getattr(options, name) != default]
    return ["--" + name.replace("_", "-") for name in names]


def _policy(kind: BranchKind, options: "RunOptions", then: BranchPolicy | None) -> BranchPolicy:
    budget, require = _budget(options), options.branch_require
    n, at = options.branch_n, options.branch_at
    if kind != "ask-user" and n > budget.max_children:
        raise UsageError(
            f"--branch-n {n} is more than --branch-children {budget.max_children}",
            hint="raise --branch-children, the bound of one fork",
        )
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
