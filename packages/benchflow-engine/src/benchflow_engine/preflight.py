"""Checks before a run starts: whether its parts can work together."""

from collections.abc import Mapping
from os import environ
from typing import TYPE_CHECKING

from benchflow_agent_acp import DeclaredAgent
from benchflow_contracts import (
    Agent,
    AgentNeeds,
    BaseProvider,
    BenchFlowError,
    Role,
    SandboxCapabilities,
    SandboxProvider,
    SandboxUnsupportedError,
    Task,
    TaskVerifier,
    UsageError,
)
from benchflow_kernel import BranchPolicy, RolloutConfig
from benchflow_kernel.resolve import (
    Contributions,
    Plan,
    Planes,
    environment_needs,
    planned_roles,
    resolve,
)
from benchflow_kernel.rollout import check_capabilities, check_turns, needs_capabilities

from .config import RunConfig
from .model_gateway import check_public_address
from .planes import load_agent
from .upstream_probe import settle_model

if TYPE_CHECKING:
    from benchflow_agent_acp import AgentDecl

_SPOKEN = {
    "openai": "openai-chat",
    "vllm": "openai-chat",
    "auto": "openai-chat",
    "anthropic": "anthropic",
}
"""The protocol of each kind of upstream; `same` uses the agent's protocol."""


def check_agent(config: RunConfig) -> None:
    """Refuse a run whose agent cannot work with its model endpoint or cannot be forked.

    Raises:
        UsageError: The agent needs a model, and there is no endpoint; the endpoint has another
            protocol, and nothing translates; the agent takes no tools, and should get one; or
            questions should be forked, and the agent asks none.
    """
    agent = load_agent(config)
    if not isinstance(agent, DeclaredAgent):
        return
    _check_wire(config, agent.decl)
    role = Role(env=config.agent.env)
    tool = agent.decl.mcp.transport != "none"
    if agent.asks_by_tool(role) and not tool:
        raise UsageError(
            f"agent {config.agent.label!r} takes no tools, so it cannot get the question tool",
            hint="leave out --agent-env.BENCHFLOW_ASK_MCP, or use another agent",
        )
    if _forks_questions(config.branch) and not agent.asks(role):
        raise UsageError(
            f"agent {config.agent.label!r} asks no questions here, so nothing would be forked",
            hint="give it a question tool with --agent-env.BENCHFLOW_ASK_MCP 1"
            if tool
            else "fork at a turn, with --branch group; or use an agent that asks",
        )


def _forks_questions(policy: BranchPolicy | None) -> bool:
    return policy is not None and (policy.kind == "ask-user" or _forks_questions(policy.then))


def _check_wire(config: RunConfig, decl: "AgentDecl") -> None:
    wire, name = decl.model.wire, config.agent.label
    if wire == "none":
        return
    if config.model.base_url is None or config.agent.model is None:
        raise UsageError(
            f"agent {name!r} acts through a model", hint="give --base-url URL and --model NAME"
        )
    if config.model.gateway:
        return
    if _SPOKEN.get(config.model.upstream, wire) != wire:
        raise UsageError(
            f"agent {name!r} speaks {wire!r}, which --upstream {config.model.upstream} does not,"
            " and without the gateway nothing translates",
            hint="leave the gateway on, or give an endpoint that speaks the agent's wire",
        )
    if wire == "gemini":
        raise UsageError(
            f"agent {name!r} speaks 'gemini', whose key only the gateway puts where Google"
            " takes it",
            hint="leave the gateway on",
        )


async def check_provider(
    config: RunConfig,
    task: Task,
    planes: Planes,
    *,
    rollout: RolloutConfig | None = None,
    continues: bool = False,
) -> None:
    """Refuse a rollout that its provider cannot run, fork or grade, before it starts.

    Without forks only a provider that derives from `BaseProvider` is asked: for others the
    answer takes seconds, and the sandbox itself refuses.

    Raises:
        SandboxUnsupportedError: The provider lacks what the sandbox or its grading needs.
        FidelityError: A required fidelity is not available.
        UsageError: A fork is before a turn that does not exist, or the task has a limit that
            nothing applies.
    """
    rollout = rollout or config.rollout_config()
    check_foreign_limits(config, task, rollout, planes.agents)
    if not is_asked_first(planes.provider, rollout):
        return
    capabilities = await planes.provider.capabilities()
    try:
        # Only an installed agent knows its needs. The rollout compares the final plan again.
        needs = [(role, AgentNeeds()) for role in planned_roles(task, rollout)]
        environment = environment_needs(task, planes)
        given = Contributions(
            needs=needs, environment=environment, variables=environ, capabilities=capabilities
        )
        plan = resolve(task, rollout, given, planes, "preflight")
    except BenchFlowError:
        return  # The rollout fails by the same error, and its record has it.
    if not continues:  # Forks of a continued rollout count from the first turn of the first one.
        check_turns(plan)
    check_plan(config, plan, capabilities)


def check_foreign_limits(
    config: RunConfig, task: Task, rollout: RolloutConfig, agents: Mapping[str, Agent]
) -> None:
    """Refuse limits of the task that the gateway cannot apply, for an agent that does not.

    Raises:
        UsageError: A limit is on the cost of a model without a price, or has no form here.
    """
    agent, model = task.config.agent, config.model
    is_unpriced = model.base_url is not None and model.usd_per_mtok is None
    if not agent.other_limits and (agent.max_cost_usd is None or not is_unpriced):
        return
    try:
        roles = planned_roles(task, rollout)
    except BenchFlowError:
        return  # The rollout fails by the same error, and its record has it.
    known = [role.agent for role in roles if role.agent in agents]
    acting = {name for name in known if agents[name].capabilities().acts_by == "model"}
    if not acting - set(agent.self_limited):
        return
    if agent.other_limits:
        able = ", ".join(agent.self_limited) or "none"
        raise UsageError(
            f"the task has {', '.join(agent.other_limits)}, and no agent of the rollout applies it"
            f" (those that do: {able})",
            where="task.toml:agent.other_limits",
            hint="use such an agent, or remove the limit from the task",
        )
    raise UsageError(
        f"the task limits the cost of its model calls to {agent.max_cost_usd:g} USD, and the"
        " price of the model is not known",
        where="task.toml:agent.max_cost_usd",
        hint="give the price with --usd-per-mtok INPUT OUTPUT",
    )


def is_asked_first(provider: SandboxProvider, config: RolloutConfig) -> bool:
    """Return whether the provider is asked for its capabilities before a rollout starts."""
    return needs_capabilities(config) or isinstance(provider, BaseProvider)


def check_plan(config: RunConfig, plan: Plan, capabilities: SandboxCapabilities) -> None:
    """Compare all that the sandbox, the forks and the grading of a plan need.

    Raises:
        SandboxUnsupportedError: The provider lacks what the sandbox or its grading needs.
        FidelityError: A required fidelity is not available.
    """
    check_capabilities(plan, capabilities)
    if config.reward.import_path is None:
        task = plan.task
        for part in [task.step(at) for at in range(len(task.steps))] or [task]:
            _check_grading(plan.planes.provider.name, part.config.verifier, capabilities)


def _check_grading(provider: str, verifier: TaskVerifier, can: SandboxCapabilities) -> None:
    if verifier.type != "script":
        return
    if can.freeze == "none" and not can.kill_all:
        raise SandboxUnsupportedError(
            f"sandbox {provider!r} cannot grade: it neither freezes a sandbox nor"
            " kills all of its processes",
            hint="implement `kill_all` (SupportsKillAll), or use another sandbox",
        )
    if verifier.isolation == "twin" and (can.freeze == "none" or not can.snapshot_levels):
        lacking = "freeze" if can.freeze == "none" else "snapshots"
        raise SandboxUnsupportedError(
            f"sandbox {provider!r} has no {lacking}, so there is no twin of a sandbox",
            hint="grade with --isolation hermetic",
        )


async def check_endpoint(config: RunConfig) -> None:
    """Check that the endpoints of the agent and of judges answer, if there are endpoints.

    An endpoint of unknown kind is probed; see `settle_model`.

    Raises:
        ModelEndpointError: An endpoint does not answer, or that of the agent answers 404 to the
            model route.
        TokensMissingError: Tokens are required, and the agent's endpoint does not return them.
        UsageError: Tokens are required, and the protocol of the endpoint has none; or the gateway
            cannot serve sandboxes outside safely.
    """
    check_public_address(config.model.access)
    endpoint, judge = config.model.endpoint(), config.judge.endpoint()
    if endpoint is None and judge is None:
        return
    # Only a run with a model needs the HTTP client, so the import is late.
    from .model_endpoint import reach  # noqa: PLC0415

    if judge is not None:
        await reach(judge, wire=_SPOKEN.get(config.judge.upstream))
    if endpoint is None:
        return
    agent = load_agent(config)
    wire = agent.decl.model.wire if isinstance(agent, DeclaredAgent) else None
    await reach(endpoint, wire=_SPOKEN.get(config.model.upstream, wire))
    await settle_model(config)
