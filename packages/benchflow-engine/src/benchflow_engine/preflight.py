"""Checks before a run starts: whether its parts can work together."""

from os import environ
from typing import TYPE_CHECKING

from benchflow_agent_acp import AcpAgent
from benchflow_contracts import (
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
from benchflow_kernel import RolloutConfig
from benchflow_kernel.resolve import (
    Contributions,
    Plan,
    Planes,
    environment_needs,
    planned_roles,
    resolve,
)
from benchflow_kernel.rollout import check_capabilities, check_turns, needs_capabilities

from .options import RunOptions
from .planes import load_agent

if TYPE_CHECKING:
    from benchflow_agent_acp import AgentDecl

_SPOKEN = {"openai": "openai-chat", "vllm": "openai-chat", "anthropic": "anthropic"}
"""The protocol of each kind of upstream; `same` uses the agent's protocol."""


def check_agent(options: RunOptions) -> None:
    """Refuse a run whose agent cannot work with its model endpoint or cannot be forked.

    Raises:
        UsageError: The agent needs a model, and there is no endpoint; the endpoint has another
            protocol, and nothing translates; the agent takes no tools, and should get one; or
            questions should be forked, and the agent asks none.
    """
    agent = load_agent(options)
    if not isinstance(agent, AcpAgent):
        return
    _check_wire(options, agent.decl)
    role = Role(env=options.agent_env)
    tool = agent.decl.mcp.transport != "none"
    if agent.asks_by_tool(role) and not tool:
        raise UsageError(
            f"agent {options.agent_name!r} takes no tools, so it cannot get the question tool",
            hint="leave out --agent-env.BENCHFLOW_ASK_MCP, or use another agent",
        )
    if "ask-user" in (options.branch, options.branch_then) and not agent.asks(role):
        raise UsageError(
            f"agent {options.agent_name!r} asks no questions here, so nothing would be forked",
            hint="give it a question tool with --agent-env.BENCHFLOW_ASK_MCP 1"
            if tool
            else "fork at a turn, with --branch group; or use an agent that asks",
        )


def _check_wire(options: RunOptions, decl: "AgentDecl") -> None:
    wire, name = decl.model.wire, options.agent_name
    if wire == "none":
        return
    if options.base_url is None or options.model is None:
        raise UsageError(
            f"agent {name!r} acts through a model", hint="give --base-url URL and --model NAME"
        )
    if options.gateway:
        return
    if _SPOKEN.get(options.upstream, wire) != wire:
        raise UsageError(
            f"agent {name!r} speaks {wire!r}, which --upstream {options.upstream} does not,"
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
    options: RunOptions, task: Task, planes: Planes, *, continues: bool = False
) -> None:
    """Refuse a rollout that its provider cannot run, fork or grade, before it starts.

    Without forks only a provider that derives from `BaseProvider` is asked: for others the
    answer takes seconds, and the sandbox itself refuses.

    Raises:
        SandboxUnsupportedError: The provider lacks what the sandbox or its grading needs.
        FidelityError: A required fidelity is not available.
        UsageError: A fork is before a turn that does not exist.
    """
    config = options.rollout_config()
    if not is_asked_first(planes.provider, config):
        return
    capabilities = await planes.provider.capabilities()
    try:
        # Only an installed agent knows its needs. The rollout compares the final plan again.
        needs = [(role, AgentNeeds()) for role in planned_roles(task, config)]
        environment = environment_needs(task, planes)
        given = Contributions(needs=needs, environment=environment, variables=environ)
        plan = resolve(task, config, given, planes, "preflight")
    except BenchFlowError:
        return  # The rollout fails by the same error, and its record has it.
    if not continues:  # Forks of a continued rollout count from the first turn of the first one.
        check_turns(plan)
    check_plan(options, plan, capabilities)


def is_asked_first(provider: SandboxProvider, config: RolloutConfig) -> bool:
    """Return whether the provider is asked for its capabilities before a rollout starts."""
    return needs_capabilities(config) or isinstance(provider, BaseProvider)


def check_plan(options: RunOptions, plan: Plan, capabilities: SandboxCapabilities) -> None:
    """Compare all that the sandbox, the forks and the grading of a plan need.

    Raises:
        SandboxUnsupportedError: The provider lacks what the sandbox or its grading needs.
        FidelityError: A required fidelity is not available.
    """
    check_capabilities(plan, capabilities)
    if options.reward_import_path is None:
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


async def check_endpoint(options: RunOptions) -> None:
    """Check that the model endpoint answers and serves the model route, if there is an endpoint.

    Raises:
        ModelEndpointError: The endpoint does not answer, or answers 404 to the model route.
    """
    endpoint = options.endpoint()
    if endpoint is None:
        return
    # Only a run with a model needs the HTTP client, so the import is late.
    from .model_endpoint import reach  # noqa: PLC0415

    agent = load_agent(options)
    wire = agent.decl.model.wire if isinstance(agent, AcpAgent) else None
    await reach(endpoint, wire=_SPOKEN.get(options.upstream, wire))
