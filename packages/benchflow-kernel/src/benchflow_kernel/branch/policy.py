"""Decide by the branch policy whether, and into which children, a state is forked."""

import hashlib

from benchflow_contracts import Ask

from benchflow_kernel.config import (
    AskUserBranch,
    BranchPolicy,
    CallerBranch,
    GroupBranch,
    ValueBranch,
)


def forks_at_turn(policy: BranchPolicy, turn: int, states: int) -> bool:
    """Return whether `policy` forks at the start of `turn`, which is state number `states`."""
    match policy.kind:
        case "ask-user" | "caller":
            return False
        case "group" | "best-of":
            return turn == policy.at and not forks_at_calls(policy)
        case "value":
            return states % policy.every == 0 and not forks_at_calls(policy)


def forks_at_calls(policy: BranchPolicy | None) -> bool:
    """Return whether `policy` forks at model calls instead of at turns and questions."""
    match policy:
        case GroupBranch():
            return policy.at_call is not None
        case ValueBranch():
            return policy.at_calls
        case _:
            return False


def forks_at_call(policy: BranchPolicy, call: int, rollout_id: str) -> bool:
    """Return whether `policy` forks at model call number `call` of a path, from 1.

    A random choice depends only on the seed, the rollout and the number.
    """
    match policy:
        case GroupBranch():
            return call == policy.at_call
        case ValueBranch(every_call=int(every)):
            return call % every == 0
        case ValueBranch(call_share=float(share)):
            text = f"{policy.seed}\0{rollout_id}\0{call}"
            digest = hashlib.sha256(text.encode()).digest()
            return int.from_bytes(digest[:8], "big") < share * 2**64
        case _:
            return False


def forks_at_ask(policy: BranchPolicy, ask: Ask, states: int) -> bool:
    """Return whether `policy` forks at `ask`, which is state number `states`.

    Only a question or a request to fork can be forked, not a permission request. One child for
    each option needs a finite set of distinct options.
    """
    if isinstance(policy, CallerBranch):
        return ask.kind == "fork" and ask.branchable and _has_distinct_options(ask)
    if ask.kind != "question":
        return False
    if isinstance(policy, ValueBranch):
        return states % policy.every == 0 and not policy.at_calls
    return isinstance(policy, AskUserBranch) and ask.branchable and _has_distinct_options(ask)


def needs_base_checkpoint(policy: BranchPolicy, turn: int) -> bool:
    """Return whether a later fork may need a checkpoint of the start of `turn`."""
    if policy.require == "live" or policy.kind == "caller":
        return False
    return policy.kind in {"ask-user", "value"} or forks_at_calls(policy) or turn == 0


def children_of(policy: BranchPolicy, ask: Ask | None) -> int:
    """Return the number of children of a fork."""
    if isinstance(policy, AskUserBranch | CallerBranch):
        return 0 if ask is None else len(ask.questions[0].options)
    return policy.n


def labels_of(policy: BranchPolicy, ask: Ask | None) -> list[str]:
    """Return one distinct label for each child: the label of its option, or its number."""
    if not isinstance(policy, AskUserBranch | CallerBranch) or ask is None:
        return [f"sample {index + 1}" for index in range(children_of(policy, ask))]
    options = ask.questions[0].options
    names = [option.label or option.id for option in options]
    return [
        label if names.count(label) == 1 else f"{label} ({option.id})"
        for label, option in zip(names, options, strict=True)
    ]


def policies(policy: BranchPolicy | None) -> list[BranchPolicy]:
    """Return the policy and its nested policies, outermost first."""
    chain: list[BranchPolicy] = []
    while policy is not None:
        chain.append(policy)
        policy = policy.then
    return chain


def _has_distinct_options(ask: Ask) -> bool:
    options = [option.id for option in ask.questions[0].options]
    return len(set(options)) == len(options)
