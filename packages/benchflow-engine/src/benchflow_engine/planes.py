"""Create the planes of a run, by name from the registry."""

import os
import sys
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from contextlib import asynccontextmanager, contextmanager
from inspect import signature
from pathlib import Path
from typing import Any, Final, cast

from benchflow_agent_acp import agent_from_file
from benchflow_contracts import (
    Agent,
    AgentFactory,
    BenchFlowError,
    EnvironmentFactory,
    EnvironmentLoader,
    ModelGateway,
    Reward,
    RewardFactory,
    SandboxProvider,
    SupportsTask,
    Task,
    TaskError,
    UsageError,
    UserModel,
    host_error,
    host_is_short,
)
from benchflow_kernel import Planes, Registry, load_path, make_user
from benchflow_store import seal_config

from benchflow_engine.config import RunConfig
from benchflow_engine.user_agents import resolve_name

_OPTIONS: Final[Mapping[str, tuple[str, str, str]]] = {
    "pull": ("--pull", "does not fetch images", "docker"),
    "host": ("--sandbox-host", "does not use another host", "remote"),
}
"""Options that some factories of providers take: the flag, and a provider that has the option."""


@asynccontextmanager
async def open_provider(config: RunConfig) -> AsyncGenerator[SandboxProvider]:
    """Yield the sandbox provider. At the end everything that it created is removed.

    Raises:
        UsageError: The provider does not have an option that `config.sandbox` sets.
    """
    provider = _make_provider(config)
    try:
        yield provider
    finally:
        await provider.aclose()


def _make_provider(config: RunConfig) -> SandboxProvider:
    found = find_plugin("benchflow.sandboxes", config.sandbox.provider, config.sandbox.import_path)
    factory, label = cast("Any", found), config.sandbox.label
    given = {name: getattr(config.sandbox, name) for name in _OPTIONS}
    options = {name: value for name, value in given.items() if value is not None}
    for name, value in options.items():
        flag, reason, other = _OPTIONS[name]
        if name not in signature(factory).parameters:
            raise UsageError(
                f"sandbox {label!r} {reason}, so {flag} {value} has no effect",
                hint=f"leave it out, or use a provider that does, such as --sandbox {other}",
            )
    with made_by(f"sandbox {label!r}"):
        made = factory(allow_unisolated=config.sandbox.allow_unisolated, **options)
        return cast("SandboxProvider", made)


@contextmanager
def made_by(provider: str) -> Generator[None, None, None]:
    """Name the provider whose factory fails in the block, so that a job records the failure.

    Raises:
        UsageError: The factory raised an error of its own.
        HostError: The host lacks a resource.
    """
    try:
        yield
    except BenchFlowError:
        raise
    except Exception as error:
        if host_is_short(error):
            raise host_error(f"make {provider}", error) from error
        raise UsageError(
            f"{provider} cannot be made: {type(error).__name__}: {error}",
            hint="correct the settings of the task or the provider; --debug shows the traceback",
        ) from error


def load_agent(config: RunConfig) -> Agent:
    """Return the agent by import path, declaration file, registry name or alias."""
    if config.agent.import_path is not None:
        return _imported_agent(config.agent.import_path)
    if config.agent.name.endswith(".toml"):
        return agent_from_file(Path(config.agent.name))
    name = resolve_name(config.agent.name)
    if isinstance(name, Path):
        return agent_from_file(name)
    factory = cast("AgentFactory", Registry().resolve("benchflow.agents", name))
    with made_by(f"agent {config.agent.name!r}"):
        return factory()


def find_plugin(group: str, name: str, import_path: str | None) -> object:
    """Return the object of the operator's import path, else the registered one.

    Raises:
        UsageError: The object cannot be imported or called.
        UnknownProviderError: `name` is not registered.
    """
    if import_path is None:
        return Registry().resolve(group, name)
    found = _imported(import_path)
    if not callable(found):
        raise UsageError(
            f"{import_path!r} cannot be called",
            hint=f"name a class or a function, as an entry point of {group} does",
        )
    return found


def _imported(path: str) -> object:
    here = os.getcwd()  # noqa: PTH109 - each rollout asks
    if here not in sys.path:
        # Last, so that no file here shadows an installed module.
        sys.path.append(here)
    return load_path(path)


def _imported_agent(path: str) -> Agent:
    made = _imported(path)
    if callable(made):
        with made_by(f"agent {path!r}"):
            made = cast("AgentFactory", made)()
    if not all(callable(getattr(made, name, None)) for name in ("needs", "connect")):
        raise UsageError(
            f"{path!r} is not an Agent", hint="name a class or a function that returns an Agent"
        )
    return cast("Agent", made)


def find_manifest(task: Task) -> Path | None:
    """Return the manifest of a task: its own, or that of the benchmark around it.

    Only a task in BenchFlow's format has one; files around other tasks are not read.
    """
    if task.format != "benchflow":
        return None
    home = str(task.path)
    above = os.path.dirname(home)  # noqa: PTH120 - each rollout looks, mostly in vain
    for place in (f"{home}/environment", above, os.path.dirname(above)):  # noqa: PTH120
        path = os.path.join(place, "environment.toml")  # noqa: PTH118
        if os.path.isfile(path):  # noqa: PTH113
            return Path(path)
    return None


def load_environment(config: RunConfig, task: Task) -> EnvironmentFactory | None:
    """Return the environment of `task`, or `None` for a task without one."""
    manifest = config.environment.manifest or find_manifest(task)
    name, path = task.config.environment.provider, config.environment.import_path
    if manifest is None and name is None and path is None:
        return None
    found = find_plugin("benchflow.environments", name or "manifest", path)
    with made_by(f"environment {path or name or 'manifest'!r}"):
        return cast("EnvironmentLoader", found)(task, manifest=manifest)


def load_rewards(config: RunConfig, task: Task) -> list[Reward]:
    """Return the rewards that the operator or the task's `[verifier]` table names.

    Raises:
        UsageError: Not exactly one reward is named `reward`, or the factory failed.
        UnknownProviderError: The verifier's type or protocol is not registered.
    """
    verifier, path = task.config.verifier, config.reward.import_path
    name = verifier.type
    found = find_plugin("benchflow.rewards", name, path)
    protocol = _grading_protocol(verifier.protocol)
    with made_by(f"reward {path or name!r}"):
        rewards = list(
            cast("RewardFactory", found)(
                task,
                isolation=config.isolation,
                judge=config.judge.endpoint() or config.model.endpoint(),
                judge_model=config.judge.model or config.user.model or config.agent.model,
                protocol=protocol,
            )
        )
        names = [reward.name for reward in rewards]
    if names.count("reward") != 1:
        raise UsageError(
            f"{path or name!r} makes the rewards {names!r}",
            hint="exactly one of them must be named 'reward': it is the return of a rollout",
        )
    return rewards


def check_verifiers(configs: Iterable[RunConfig], tasks: Iterable[Task]) -> None:
    """Check that the verifiers of tasks exist. An operator's own reward replaces them.

    Raises:
        TaskError: A type of verifier or a grading protocol is not registered.
        UsageError: An operator's own reward or environment cannot be imported.
    """
    runs = list(configs)
    for run in runs:
        for group, own in (
            ("benchflow.rewards", run.reward.import_path),
            ("benchflow.environments", run.environment.import_path),
            ("benchflow.rewards", run.reward.group_import_path),
        ):
            if own is not None:
                find_plugin(group, "", own)
    if all(run.reward.import_path is not None for run in runs):
        return
    known: set[tuple[str, str]] = set()
    for task in tasks:
        for part in [task.step(index) for index in range(len(task.steps))] or [task]:
            verifier = part.config.verifier
            if (verifier.type, verifier.protocol) in known:
                continue
            known.add((verifier.type, verifier.protocol))
            try:
                find_plugin("benchflow.rewards", verifier.type, None)
                _grading_protocol(verifier.protocol)
            except UsageError as error:
                raise TaskError(f"task {task.id!r}: {error}", hint=error.hint) from error


def _grading_protocol(name: str) -> object:
    """Return the registered protocol of that name; `None` is the default of the rewards."""
    if name == "benchflow":
        return None
    return Registry().resolve("benchflow.grading_protocols", name)


def assemble(
    config: RunConfig,
    task: Task,
    provider: SandboxProvider,
    gateway: ModelGateway | None = None,
) -> Planes:
    """Return the planes of one rollout of `task`."""

    def user() -> UserModel:
        return make_user(
            task.config.user,
            endpoint=config.model.endpoint(),
            model=config.user.model or config.agent.model,
            mode=config.user.mode,
            seed=config.seed,
        )

    steps = [task.step(index) for index in range(len(task.steps))]
    agent = load_agent(config)
    if hasattr(agent, "for_task"):
        agent = cast("SupportsTask", agent).for_task(task)
    return Planes(
        provider=provider,
        agents={config.agent.label: agent},
        rewards=() if task.steps else load_rewards(config, task),
        step_rewards=tuple(load_rewards(config, each) for each in steps),
        environment=load_environment(config, task),
        user=user,
        gateway=gateway,
        seal=seal_config,
    )
