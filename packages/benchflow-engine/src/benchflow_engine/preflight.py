"""What is checked before anything is started: that the parts of a run can work together."""

from typing import TYPE_CHECKING

from benchflow_agent_acp import AcpAgent
from benchflow_contracts import (
    BaseProvider,
    Role,
    SandboxProvider,
    SandboxUnsupportedError,
    Task,
    UsageError,
)

from .options import RunOptions
from .planes import load_agent

if TYPE_CHECKING:
    from benchflow_agent_acp import AgentDecl

_SPOKEN = {"openai": "openai-chat", "vllm": "openai-chat", "anthropic": "anthropic"}
"""The wire that each kind of upstream speaks; `same` speaks the agent's."""


def check_agent(options: RunOptions) -> None:
    """Refuse a run whose agent cannot work with its model endpoint or cannot be forked.

    Raises:
        UsageError: The agent acts through a model, and there is no endpoint; the endpoint
            speaks another wire, and nothing translates; the agent takes no tools, and is to be
            given one; or questions are to be forked, and it asks none.
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
            hint="leave out --agent-env.BENCHFLOW_ASK_MCP, or take another agent",
        )
    if "ask-user" in (options.branch, options.branch_then) and not agent.asks(role):
        raise UsageError(
            f"agent {options.agent_name!r} asks no questions here, so nothing would be forked",
            hint="give it a question tool with --agent-env.BENCHFLOW_ASK_MCP 1"
            if tool
            else "fork at a turn, with --branch group; or take an agent that asks",
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


async def check_grading(options: RunOptions, provider: SandboxProvider, task: Task) -> None:
    """Refuse a task whose tests could not be graded in the provider's sandboxes.

    Only providers that derive from `BaseProvider` are asked: for others the answer takes
    seconds, and the sandbox itself refuses.

    Raises:
        SandboxUnsupportedError: Files cannot be copied from one instant, or there is no twin.
    """
    verifier = task.config.verifier
    if not isinstance(provider, BaseProvider) or verifier.type != "script":
        return
    if options.reward_import_path is not None:
        return
    can = await provider.capabilities()
    if can.freeze == "none" and not can.kill_all:
        raise SandboxUnsupportedError(
            f"sandbox {options.sandbox_name!r} cannot grade: it neither freezes a sandbox nor"
            " kills all of its processes",
            hint="implement `kill_all` (SupportsKillAll), or use another sandbox",
        )
    if (options.isolation or verifier.isolation) == "twin" and not can.snapshot_levels:
        raise SandboxUnsupportedError(
            f"sandbox {options.sandbox_name!r} has no snapshots, so there is no twin of a sandbox",
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
    # Only a run with a model pays for an HTTP client.
    from .model_endpoint import reach  # noqa: PLC0415

    agent = load_agent(options)
    wire = agent.decl.model.wire if isinstance(agent, AcpAgent) else None
    await reach(endpoint, wire=_SPOKEN.get(options.upstream, wire))
