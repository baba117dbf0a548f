"""When a question is a fork, and at which fidelity."""

from typing import Final

from benchflow_contracts import (
    Ask,
    BranchBudget,
    BranchPolicy,
    FidelityError,
    SandboxProvider,
    UsageError,
)

POLICY_NAME: Final = "ask-user"

REPLAY_REASON: Final = (
    "replay: the question came in the middle of a turn, where the agent's session cannot be"
    " carried by its files; each child got the checkpoint of the turn's start and the same"
    " prompt again"
)


def can_fork(ask: Ask, budget: BranchBudget, depth: int) -> bool:
    """Whether `ask` may be forked `depth` forks below the root.

    Only a question with a finite set of distinct options within the budget is; every
    other Ask is the user's.
    """
    if ask.kind != "question" or not ask.branchable or depth >= budget.max_depth:
        return False
    options = [option.id for option in ask.questions[0].options]
    return len(options) <= budget.max_children and len(set(options)) == len(options)


async def check_fidelity(policy: BranchPolicy, provider: SandboxProvider) -> None:
    """Refuse a rollout that could not be forked as demanded, before it starts.

    Raises:
        FidelityError: Naming what is missing.
    """
    if policy.kind != "ask-user":
        raise UsageError(f"branch policy {policy.kind!r} is not built yet")
    if policy.require in {"live", "state"}:
        missing = {
            "live": "live snapshots, which carry the waiting agent process",
            "state": "an agent session that can be carried while it waits for an answer",
        }[policy.require]
        raise FidelityError(
            f"fidelity {policy.require!r} is not available at an ask: it needs {missing}",
            hint="ask for fidelity 'replay', or leave the choice open",
        )
    capabilities = await provider.capabilities()
    if "filesystem" not in capabilities.snapshot_levels:
        raise FidelityError(f"sandbox {provider.name!r} cannot take filesystem snapshots")
    if not capabilities.freeze:
        raise FidelityError(f"sandbox {provider.name!r} cannot freeze a running box")
