"""The plan of a run, made and checked without starting an agent or a sandbox of the run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import environ
from pathlib import Path

from benchflow_agent_acp import DeclaredAgent
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

from .config import RunConfig
from .operator_settings import operator_settings, plan_origins, python_origins
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
    config: RunConfig,
    *,
    origins: Mapping[str, Origin] | None = None,
) -> Preview:
    """Return the plan of a run. Start nothing, install nothing and ask no engine.

    `origins` are the origins of the settings that are not defaults, by name. Without them, each
    such setting comes from Python.

    Raises:
        BenchFlowError: The task, an option or the manifest is wrong.
    """
    loaded = _load(task, config)
    async with open_provider(config) as provider:
        _, preview = await _preview(loaded, config, provider, origins, None)
    return preview


async def dry_run(
    task: str | Path | Task,
    config: RunConfig,
    *,
    origins: Mapping[str, Origin] | None = None,
    on_check: OnCheck = lambda _name: None,
) -> Preview:
    """Make every check that comes before a rollout, and return the plan.

    The provider is asked for its capabilities, which it may test in a sandbox of its own.

    Raises:
        BenchFlowError: A check failed before the rollout would start. A reason for which the
            rollout itself would fail is `Preview.error`.
    """
    check_agent(config)
    on_check("agent")
    loaded = _load(task, config)
    on_check("task")
    await check_endpoint(config)
    if config.model.base_url is not None:
        on_check("model endpoint")
    async with open_provider(config) as provider:
        await provider.ready()
        on_check("sandbox provider")
        capabilities = await provider.capabilities()
        try:
            plan, preview = await _preview(loaded, config, provider, origins, capabilities)
        except BenchFlowError as error:
            return Preview((), error=error)
        on_check("plan")
        try:
            check_turns(plan)
            check_plan(config, plan, capabilities)
        except BenchFlowError as error:
            if is_asked_first(provider, plan.config):
                raise
            return Preview((), error=error)
        on_check("capabilities of the provider")
    return preview


def _load(task: str | Path | Task, config: RunConfig) -> Task:
    return task if isinstance(task, Task) else runnable_task(task, config.adapter_options())


async def _preview(
    task: Task,
    config: RunConfig,
    provider: SandboxProvider,
    origins: Mapping[str, Origin] | None,
    capabilities: SandboxCapabilities | None,
) -> tuple[Plan, Preview]:
    planes = assemble(config, task, provider)
    rollout = config.rollout_config()
    roles = planned_roles(task, rollout)
    known = python_origins(config) if origins is None else origins
    needs = [(role, await _needs(agent_of(planes, role), role)) for role in roles]
    given = Contributions(
        needs=[(role, need or AgentNeeds()) for role, need in needs],
        environment=environment_needs(task, planes),
        variables=environ,
        capabilities=capabilities,
        origins=plan_origins(known),
    )
    plan = resolve(task, rollout, given, planes, "preview")
    redactor = SecretRedactor(secrets_of(config, (task.id,)))
    settings = (*operator_settings(config, task, known), *plan.settings())
    preview = Preview(
        settings=tuple(Setting(s.name, redactor.value(s.value), s.origin) for s in settings),
        not_installed=tuple(sorted({role.agent for role, need in needs if need is None})),
    )
    return plan, preview


async def _needs(agent: Agent, role: Role) -> AgentNeeds | None:
    """Return the needs of an agent, or `None` if it must be installed to know them."""
    if isinstance(agent, DeclaredAgent):
        return agent.installed_needs()
    return await agent.needs(role)
