"""The plan of a run, made and checked without starting an agent or a sandbox of the run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import environ
from pathlib import Path

from benchflow_agent_acp import AcpAgent
from benchflow_contracts import (
    Agent,
    AgentNeeds,
    BenchFlowError,
    Role,
    SandboxCapabilities,
    SandboxProvider,
    Task,
)
from benchflow_kernel.resolve import (
    Contributions,
    Origin,
    Plan,
    Setting,
    agent_of,
    environment_needs,
    planned_roles,
    resolve,
)
from benchflow_kernel.rollout import check_turns

from .option_origins import operator_settings, setting_origins
from .options import RunOptions
from .planes import assemble, open_provider
from .preflight import check_agent, check_endpoint, check_plan, is_asked_first
from .secret_redactor import SecretRedactor
from .secrets import secrets_of
from .task_formats import runnable_task

OnCheck = Callable[[str], None]
"""Called with the name of each check that passed."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What a run would do."""

    settings: tuple[Setting, ...]
    """Every effective value, without secrets. Empty if `error` is set."""
    not_installed: tuple[str, ...] = ()
    """Agents that a run would install first."""
    error: BenchFlowError | None = None
    """Why the rollout would fail."""


async def explain(
    task: str | Path | Task,
    options: RunOptions,
    *,
    flags: Mapping[str, Origin] | None = None,
) -> Preview:
    """Return the plan of a run. Start nothing, install nothing and ask no engine.

    `flags` are the origins of the options, by field.

    Raises:
        BenchFlowError: The task, an option or the manifest is wrong.
    """
    loaded = _load(task, options)
    async with open_provider(options) as provider:
        _, preview = await _preview(loaded, options, provider, flags, None)
    return preview


async def dry_run(
    task: str | Path | Task,
    options: RunOptions,
    *,
    flags: Mapping[str, Origin] | None = None,
    on_check: OnCheck = lambda _name: None,
) -> Preview:
    """Make every check that comes before a rollout, and return the plan.

    The provider is asked for its capabilities, which it may test in a sandbox of its own.

    Raises:
        BenchFlowError: A check failed before the rollout would start. A reason for which the
            rollout itself would fail is `Preview.error`.
    """
    check_agent(options)
    on_check("agent")
    loaded = _load(task, options)
    on_check("task")
    await check_endpoint(options)
    if options.base_url is not None:
        on_check("model endpoint")
    async with open_provider(options) as provider:
        await provider.ready()
        on_check("sandbox provider")
        capabilities = await provider.capabilities()
        try:
            plan, preview = await _preview(loaded, options, provider, flags, capabilities)
        except BenchFlowError as error:
            return Preview((), error=error)
        on_check("plan")
        try:
            check_turns(plan)
            check_plan(options, plan, capabilities)
        except BenchFlowError as error:
            if is_asked_first(provider, plan.config):
                raise
            return Preview((), error=error)
        on_check("capabilities of the provider")
    return preview


def _load(task: str | Path | Task, options: RunOptions) -> Task:
    return task if isinstance(task, Task) else runnable_task(task, options.adapter_options())


async def _preview(
    task: Task,
    options: RunOptions,
    provider: SandboxProvider,
    flags: Mapping[str, Origin] | None,
    capabilities: SandboxCapabilities | None,
) -> tuple[Plan, Preview]:
    planes = assemble(options, task, provider)
    config = options.rollout_config()
    roles = planned_roles(task, config)
    needs = [(role, await _needs(agent_of(planes, role), role)) for role in roles]
    given = Contributions(
        needs=[(role, need or AgentNeeds()) for role, need in needs],
        environment=environment_needs(task, planes),
        variables=environ,
        capabilities=capabilities,
        origins=setting_origins(options, flags),
    )
    plan = resolve(task, config, given, planes, "preview")
    redactor = SecretRedactor(secrets_of(options, (task.id,)))
    settings = (*operator_settings(options, task, flags), *plan.settings())
    preview = Preview(
        settings=tuple(Setting(s.name, redactor.value(s.value), s.origin) for s in settings),
        not_installed=tuple(sorted({role.agent for role, need in needs if need is None})),
    )
    return plan, preview


async def _needs(agent: Agent, role: Role) -> AgentNeeds | None:
    """Return the needs of an agent, or `None` if it must be installed to know them."""
    if isinstance(agent, AcpAgent):
        return agent.installed_needs()
    return await agent.needs(role)
