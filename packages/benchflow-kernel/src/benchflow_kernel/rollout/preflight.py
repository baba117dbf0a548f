"""Compare the needs of a plan with its provider and agents, before anything starts."""

from collections.abc import Iterator, Sequence

from benchflow_contracts import (
    MODEL_DOOR,
    Reward,
    SandboxCapabilities,
    SandboxUnsupportedError,
    UsageError,
    needs_processes,
    stops_processes,
)

from benchflow_kernel.branch import RANK, forks_at_calls
from benchflow_kernel.branch.policy import policies
from benchflow_kernel.config import BestOfBranch, BranchPolicy, GroupBranch, RolloutConfig
from benchflow_kernel.errors import FidelityError, WorldFidelityError
from benchflow_kernel.resolve import Plan


def needs_capabilities(config: RolloutConfig) -> bool:
    """Return whether a rollout asks its provider for capabilities. That may take seconds."""
    return config.branch is not None or config.keep.which == "all"


def check_turns(plan: Plan) -> None:
    """Refuse a fork before a turn that does not exist, and model calls that nobody sees.

    Raises:
        UsageError: The plan has fewer turns, or it forks at model calls or limits them, and no
            gateway is before the model.
    """
    policy, turns = plan.config.branch, plan.max_turns
    check_limits(plan)
    for part in policies(policy):
        if forks_at_calls(part):
            _check_model(plan, part)
        if isinstance(part, GroupBranch | BestOfBranch) and part.at >= turns:
            raise UsageError(
                f"policy {part.kind!r} forks before turn {part.at}, and the rollout has at most"
                f" {turns} turns",
                hint="turns are counted from 0",
            )


def _check_model(plan: Plan, policy: BranchPolicy) -> None:
    if plan.planes.gateway is None or plan.spec.door(MODEL_DOOR) is None:
        raise UsageError(
            f"policy {policy.kind!r} forks at model calls, and no gateway sees the agent's calls",
            hint="use an agent that acts through a model, with --base-url and without --no-gateway",
        )


def limits_itself(plan: Plan) -> bool:
    """Return whether each agent of a plan applies the limits of a foreign task by itself."""
    known = plan.task.config.agent.self_limited
    return all(turn.role.agent in known for turn in plan.turns)


def check_limits(plan: Plan) -> None:
    """Refuse limits on model calls that bypass the gateway.

    Raises:
        UsageError: The task has such a limit, and its agent reaches a model without a gateway.
    """
    if plan.spec.door(MODEL_DOOR) is None:
        _check_unseen_models(plan)
        return
    agent = plan.task.config.agent
    names = ["max_calls", "max_tokens"]
    if not limits_itself(plan):
        names += ["max_messages", "max_cost_usd"]
    given = [name for name in names if getattr(agent, name) is not None]
    if given and plan.planes.gateway is None:
        raise UsageError(
            f"the task limits the model calls of its agent ({', '.join(given)}), and no gateway"
            " counts them",
            where="task.toml:agent",
            hint="leave out --no-gateway",
        )


def _check_unseen_models(plan: Plan) -> None:
    """Refuse limits on the calls of a model that the agent reaches by itself."""
    agent, agents = plan.task.config.agent, plan.planes.agents
    if not agent.model_limits:
        return
    names = {turn.role.agent for turn in plan.turns} - set(agent.self_limited)
    unseen = sorted(name for name in names if agents[name].capabilities().acts_by == "model")
    if unseen:
        raise UsageError(
            f"the task has {', '.join(agent.model_limits)}, and the gateway does not see the model"
            f" calls of agent {unseen[0]!r}",
            where="task.toml:agent",
            hint="use an agent that acts through --base-url, or remove the limits from the task;"
            ' an agent without a model declares `acts_by = "script"`',
        )


def check_shared_files(plan: Plan) -> None:
    """Refuse a rollout whose shared files could have two versions, or contain hidden tests.

    Raises:
        UsageError: The plan shares files, and it forks, or tests between two steps run in the
            agent's sandbox.
    """
    if plan.planes.shared_files is None:
        return
    if plan.config.branch is not None:
        raise UsageError(
            "a rollout that shares files with later ones cannot fork",
            hint="leave out --branch: each branch would leave other files",
        )
    step = next((s for s in plan.task.steps if s.verifier.isolation == "shared"), None)
    if step is not None:
        raise UsageError(
            f"step {step.name!r} is graded in the agent's sandbox, and the rollout shares files"
            " with later ones",
            hint="grade with --isolation hermetic: tests must not get into these files",
        )


def check_capabilities(plan: Plan, capabilities: SandboxCapabilities) -> None:
    """Refuse a plan whose sandbox, grading or forks the provider does not support.

    Raises:
        SandboxUnsupportedError: The provider lacks a network mode, the switch between networks
            or users, images from recipes, services, doors, processes for an agent or an
            environment, or a freeze for a reward.
        FidelityError: The world cannot be captured, or a required fidelity is not available.
    """
    _check_sandbox(plan, capabilities)
    _check_world(plan)
    if capabilities.freeze == "none":
        _check_unfrozen_grading(plan, capabilities)
    if needs_capabilities(plan.config):
        _check_captures(plan.planes.provider.name, capabilities)
    if plan.config.branch is not None and "live" not in capabilities.snapshot_levels:
        _check_fidelity(plan, plan.config.branch, capabilities)


def _check_world(plan: Plan) -> None:
    """Refuse forks and saved checkpoints that a world outside the sandbox cannot restore."""
    kind = plan.world_snapshots
    if kind is None or not needs_capabilities(plan.config):
        return
    if kind == "none":
        raise WorldFidelityError(
            "the world is outside the sandbox, and no other session can get its state: it declares"
            " snapshots 'none'",
            hint="leave out --branch and --keep all",
        )
    for part in policies(plan.config.branch):
        if part.require is not None and RANK[part.require] > RANK[kind]:
            raise WorldFidelityError(
                f"fidelity {part.require!r} is not available: the world is outside the sandbox, and"
                f" declares snapshots {kind!r}",
                hint=f"require {kind!r} or no fidelity: --branch-require",
            )


def _check_sandbox(plan: Plan, capabilities: SandboxCapabilities) -> None:
    spec, provider = plan.spec, plan.planes.provider.name
    for mode in dict.fromkeys((spec.network, *spec.switches)):
        if mode not in capabilities.network_modes:
            raise _unsupported(provider, f"network mode {mode!r}", mode, capabilities)
    changes = " and ".join(
        [f"network to {mode!r}" for mode in spec.switches if mode != spec.network]
        + [f"user to {user!r}" for user in _other_users(plan)]
    )
    if changes and not capabilities.network_switch:
        feature = f"the change of {changes} between phases of the task"
        raise _unsupported(provider, feature, "network_switch", capabilities)
    if spec.recipe is not None and not capabilities.builds:
        raise _unsupported(provider, "images from a Dockerfile", "builds", capabilities)
    if spec.services and not capabilities.services:
        raise _unsupported(provider, "services beside a sandbox", "services", capabilities)
    served = [d for d in spec.doors if plan.model_path is None or d.name != MODEL_DOOR]
    if served and capabilities.doors is None:
        names = ", ".join(repr(door.name) for door in served)
        raise _unsupported(provider, f"doors, and the agent needs {names}", "doors", capabilities)
    if not capabilities.spawn and (user := next(_users_of_spawn(plan), None)) is not None:
        raise _unsupported(provider, f"`spawn`, which {user} needs", "spawn", capabilities)


def _users_of_spawn(plan: Plan) -> Iterator[str]:
    """Return the parts of a plan that start processes by `Sandbox.spawn`."""
    for turn in plan.turns:
        agent = turn.role.agent
        can = plan.planes.agents[agent].capabilities()
        if can.spawns:
            yield f"agent {agent!r}"
        file, solution = can.spawning_solution, plan.task_of(turn).parts.solution
        if file is not None and solution is not None and (solution / file).is_file():
            yield f"agent {agent!r} with the solution's {file!r}"
    if plan.spawning_environment is not None:
        yield f"environment {plan.spawning_environment!r}"


def _check_unfrozen_grading(plan: Plan, capabilities: SandboxCapabilities) -> None:
    """Refuse rewards that read files without a freeze, and thus end needed processes."""
    provider, steps = plan.planes.provider.name, plan.task.steps
    for index in range(len(steps) or 1):
        rewards = plan.rewards(index)
        for at, reward in enumerate(rewards):
            if not stops_processes(reward):
                continue
            problem = f"sandbox {provider!r} cannot grade: it cannot be frozen while reward"
            problem += f" {reward.name!r} reads its files, "
            if not capabilities.kill_all:
                raise SandboxUnsupportedError(
                    f"{problem}and its processes cannot all be killed",
                    hint="implement `kill_all` (SupportsKillAll), or use another sandbox",
                )
            reason = _needs_running(plan, index, rewards[at + 1 :])
            if reason is not None:
                raise SandboxUnsupportedError(
                    f"{problem}and {reason} needs its processes afterwards",
                    hint="use a sandbox that can be frozen, such as --sandbox docker",
                )


def _needs_running(plan: Plan, index: int, later: Sequence[Reward]) -> str | None:
    """Return the part that needs the processes after a reward of step `index`.

    `later` are the rewards that follow.
    """
    user = next((reward.name for reward in later if needs_processes(reward)), None)
    if user is not None:
        return f"reward {user!r}"
    steps = plan.task.steps[index + 1 :]
    return f"step {steps[0].name!r}" if steps else None


def _other_users(plan: Plan) -> list[str]:
    # Only the image knows the user of an empty `spec.user`.
    default = plan.spec.user
    users = dict.fromkeys(step.user for step in plan.phases if step.user is not None)
    return [user for user in users if default and user != default]


def _unsupported(
    provider: str, feature: str, capability: str, capabilities: SandboxCapabilities
) -> SandboxUnsupportedError:
    reason = capabilities.notes.get(capability)
    return SandboxUnsupportedError(
        f"sandbox {provider!r} does not support {feature}" + (f": {reason}" if reason else ""),
        hint="use another sandbox, such as --sandbox docker",
    )


def _check_captures(provider: str, capabilities: SandboxCapabilities) -> None:
    if "filesystem" not in capabilities.snapshot_levels:
        raise FidelityError(
            f"sandbox {provider!r} cannot take filesystem snapshots",
            hint="run `bench doctor`, or leave out --branch and --keep all",
        )
    consistency = capabilities.snapshot_consistency
    if consistency != "instant" and capabilities.freeze != "kernel":
        raise FidelityError(
            f"sandbox {provider!r} takes {consistency} snapshots, and a checkpoint needs the files"
            " of one instant",
            hint="use a sandbox whose `snapshot_consistency` is `instant`, such as docker",
        )


def _check_fidelity(plan: Plan, policy: BranchPolicy, capabilities: SandboxCapabilities) -> None:
    provider, agents = plan.planes.provider.name, plan.planes.agents
    reason = capabilities.notes.get("live", "it has no live snapshots")
    names = sorted({turn.role.agent for turn in plan.turns})
    no_files = [name for name in names if agents[name].capabilities().session_snapshot == "none"]
    for part in policies(policy):
        if part.require == "live":
            raise FidelityError(
                f"fidelity 'live' is not available: sandbox {provider!r} has no live"
                f" snapshots ({reason})",
                hint="run `bench doctor`, or require a lower fidelity: --branch-require",
            )
        in_turn = "an ask" if part.kind == "ask-user" else "a model call"
        if part.require == "state" and (part.kind == "ask-user" or forks_at_calls(part)):
            raise FidelityError(
                f"fidelity 'state' is not available at {in_turn}: files do not restore an agent"
                f" that waits, and sandbox {provider!r} has no live snapshots ({reason})",
                hint="require fidelity 'replay', or no fidelity",
            )
        if part.require == "state" and no_files:
            raise FidelityError(
                f"fidelity 'state' is not available: agent {no_files[0]!r} has no session files",
                hint="run `bench agent probe`, or require fidelity 'replay'",
            )
