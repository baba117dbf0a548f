"""What a branch policy says about one state of one line."""

from benchflow_contracts import Ask, AskUserBranch, BranchPolicy, ValueBranch


def forks_at_turn(policy: BranchPolicy, turn: int, states: int) -> bool:
    """Whether `policy` forks at the start of `turn`, the line's `states`-th state."""
    match policy.kind:
        case "ask-user":
            return False
        case "group" | "best-of":
            return turn == policy.at
        case "value":
            return states % policy.every == 0


def forks_at_ask(policy: BranchPolicy, ask: Ask, states: int) -> bool:
    """Whether `policy` forks at `ask`, the line's `states`-th state.

    Only a question can be a fork, never a permission. One child per option needs a
    finite set of distinct ones.
    """
    if ask.kind != "question":
        return False
    if isinstance(policy, ValueBranch):
        return states % policy.every == 0
    return isinstance(policy, AskUserBranch) and ask.branchable and _distinct(ask)


def needs_base_checkpoint(policy: BranchPolicy, turn: int) -> bool:
    """Whether a checkpoint of the start of `turn` may be all that a later fork has."""
    if policy.require == "live":
        return False
    return policy.kind in {"ask-user", "value"} or turn == 0


def children_of(policy: BranchPolicy, ask: Ask | None) -> int:
    """How many children a fork has."""
    if isinstance(policy, AskUserBranch):
        return 0 if ask is None else len(ask.questions[0].options)
    return policy.n


def labels_of(policy: BranchPolicy, ask: Ask | None) -> list[str]:
    """Return one label per child, all distinct: its option's, or its number."""
    if not isinstance(policy, AskUserBranch) or ask is None:
        return [f"sample {index + 1}" for index in range(children_of(policy, ask))]
    options = ask.questions[0].options
    plain = [option.label or option.id for option in options]
    return [
        label if plain.count(label) == 1 else f"{label} ({option.id})"
        for label, option in zip(plain, options, strict=True)
    ]


def policies(policy: BranchPolicy | None) -> list[BranchPolicy]:
    """Return the policy and those that are nested in it, outermost first."""
    found: list[BranchPolicy] = []
    while policy is not None:
        found.append(policy)
        policy = policy.then
    return found


def _distinct(ask: Ask) -> bool:
    options = [option.id for option in ask.questions[0].options]
    return len(set(options)) == len(options)
