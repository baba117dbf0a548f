"""What a policy demands, held against what there is before anything starts."""

from collections.abc import Iterable

from benchflow_contracts import (
    AgentCapabilities,
    BestOfBranch,
    BranchPolicy,
    FidelityError,
    GroupBranch,
    SandboxCapabilities,
    UsageError,
)

from .policy import policies


def check_turns(policy: BranchPolicy, turns: int) -> None:
    """Refuse a fork before a turn that cannot come.

    Raises:
        UsageError: The rollout has at most `turns` turns.
    """
    for one in policies(policy):
        if isinstance(one, GroupBranch | BestOfBranch) and one.at >= turns:
            raise UsageError(
                f"policy {one.kind!r} forks before turn {one.at}, and there are at most {turns}",
                hint="turns are counted from 0",
            )


def check_captures(provider: str, sandbox: SandboxCapabilities) -> None:
    """Refuse a rollout whose world cannot be captured at all.

    Raises:
        FidelityError: Naming what is missing.
    """
    if "filesystem" not in sandbox.snapshot_levels:
        raise FidelityError(f"sandbox {provider!r} cannot take filesystem snapshots")


def check_fidelity(
    policy: BranchPolicy,
    provider: str,
    sandbox: SandboxCapabilities,
    agents: Iterable[tuple[str, AgentCapabilities]],
) -> None:
    """Refuse a rollout that could not be forked as demanded, before anything starts.

    Raises:
        FidelityError: Naming what is missing.
    """
    if "live" in sandbox.snapshot_levels:
        return
    why = sandbox.notes.get("live", "it has no live snapshots")
    mute = [name for name, agent in agents if agent.session_snapshot == "none"]
    for one in policies(policy):
        if one.require == "live":
            raise FidelityError(
                f"fidelity 'live' is not available: sandbox {provider!r} has no live"
                f" snapshots ({why})",
                hint="run `bench doctor`, or ask for less",
            )
        if one.require == "state" and one.kind == "ask-user":
            raise FidelityError(
                "fidelity 'state' is not available at an ask: files cannot carry an agent that"
                f" waits, and sandbox {provider!r} has no live snapshots ({why})",
                hint="ask for fidelity 'replay', or leave the choice open",
            )
        if one.require == "state" and mute:
            raise FidelityError(
                f"fidelity 'state' is not available: agent {mute[0]!r} has no session files",
                hint="run `bench agent probe`, or ask for fidelity 'replay'",
            )
