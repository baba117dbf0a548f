"""RunConfig: everything that shapes a rollout and is not the task.

The text below a field is also the help of the flag that sets the field.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from benchflow_contracts import (
    AdapterOptions,
    Model,
    PullPolicy,
    Role,
    UsageError,
)
from benchflow_kernel import RolloutConfig, RolloutSettings, Scene
from benchflow_kernel.tasks.reading import fault_of
from benchflow_store import RanWith
from pydantic import AfterValidator, Field, ValidationError

AGENT_ALIASES: Final = {
    "claude-code": "claude-agent-acp",
    "codex": "codex-acp",
    "gemini-cli": "gemini",
    "qwen-code": "qwen",
}
"""Names that other tools give to agents, with those of the registry."""


def _registry_name(name: str) -> str:
    return AGENT_ALIASES.get(name, name)


class AgentConfig(Model):
    """The agent of a rollout."""

    name: Annotated[str, AfterValidator(_registry_name)] = "oracle"
    """Agent: a registry name, another tool's name for such an agent (`claude-code`, `codex`,
    `gemini-cli`, `qwen-code`), or the path of a TOML declaration."""
    import_path: str | None = None
    """Import path `module:attr` of an Agent, instead of --agent."""
    model: str | None = None
    """Model name that the agent sends to the endpoint (default: the agent's own)."""
    reasoning_effort: str | None = None
    """Reasoning effort, for an agent that declares how it takes one (default: the agent's own)."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the agent: `--agent-env.NAME VALUE`, or a table in --config."""
    idle_timeout_sec: float = Field(default=600, gt=0)
    """Seconds without an update from the agent before its turn ends."""

    @property
    def label(self) -> str:
        """The name under which the agent is registered for this run, and in records."""
        return self.import_path or self.name

    def role(self) -> Role:
        """Return the agent's role in the rollout."""
        return Role(
            agent=self.label,
            model=self.model,
            reasoning_effort=self.reasoning_effort,
            env=self.env,
            idle_timeout_sec=self.idle_timeout_sec,
        )


class SandboxConfig(Model):
    """The sandbox provider of a rollout."""

    provider: str = "local"
    """Sandbox provider: a registry name."""
    import_path: str | None = None
    """Import path `module:attr` of a sandbox provider, instead of --sandbox."""
    pull: PullPolicy | None = None
    """Image pull policy (default: $BENCHFLOW_DOCKER_PULL, then `missing`)."""
    host: str | None = None
    """Host of the sandboxes of --sandbox remote, as ssh takes it (default:
    $BENCHFLOW_REMOTE_HOST)."""
    allow_unisolated: bool = False
    """Permission to run without namespaces on a machine that has none; not for untrusted agents."""

    @property
    def label(self) -> str:
        """The name of the provider in records."""
        return self.import_path or self.provider


class EnvironmentConfig(Model):
    """The environment of a rollout."""

    manifest: Path | None = None
    """Environment manifest (default: `environment.toml` of the task or of its benchmark)."""
    import_path: str | None = None
    """Import path `module:attr` of an environment, instead of a manifest."""


class RewardConfig(Model):
    """The rewards of a rollout."""

    import_path: str | None = None
    """Import path `module:attr` of the rewards, instead of the task's."""
    group_import_path: str | None = None
    """Import path `module:attr` of a GroupReward, which scores the rollouts of a task together
    after the last one has ended: those of a variant of a job, or the members of a group of
    `bench serve`."""


class ForeignTasksConfig(Model):
    """Permissions of tasks of other formats."""

    force_build: bool = False
    """Build of the task's Dockerfile, also if the task names an image."""
    trust_host_access: bool = False
    """Permission for tasks to mount and change paths of this machine and to reach its networks."""


class RunConfig(RolloutSettings):
    """What one rollout is run with: the kernel's settings, and the operator's choice of parts."""

    agent: AgentConfig = AgentConfig()
    sandbox: SandboxConfig = SandboxConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    reward: RewardConfig = RewardConfig()
    foreign_tasks: ForeignTasksConfig = ForeignTasksConfig()

    @property
    def ran_with(self) -> RanWith:
        """What the record of a rollout names."""
        return RanWith(agent=self.agent.label, model=self.agent.model, sandbox=self.sandbox.label)

    def adapter_options(self) -> AdapterOptions:
        """Return what tasks of other formats are allowed."""
        return AdapterOptions(
            forward_env=self.forward_env,
            trust_host_access=self.foreign_tasks.trust_host_access,
            force_build=self.foreign_tasks.force_build,
        )

    def with_agent(self, name: str) -> "RunConfig":
        """Return this configuration with the registered agent `name`."""
        agent = self.agent.model_copy(update={"name": name, "import_path": None})
        return self.model_copy(update={"agent": agent})

    def rollout_config(self) -> RolloutConfig:
        """Return the kernel's configuration of one rollout."""
        shared = {name: getattr(self, name) for name in RolloutSettings.model_fields}
        return RolloutConfig(scenes=(Scene(roles=(self.agent.role(),)),), **shared)


def read_tables(tables: Mapping[str, Any], where: str) -> RunConfig:
    """Return the configuration in the tables of a file.

    Raises:
        UsageError: A key or a value is wrong. The message names the file and the key.
    """
    faults = table_faults(tables)
    if faults:
        keys, message = faults[0]
        raise UsageError(
            f"{'.'.join(keys)}: {message}",
            where=where,
            hint="--print-config prints a configuration with its tables",
        )
    return RunConfig.model_validate(tables)


def table_faults(tables: Mapping[str, Any]) -> list[tuple[tuple[str, ...], str]]:
    """Return every fault of the tables of a RunConfig: its key, part by part, and its message."""
    try:
        RunConfig.model_validate(tables)
    except ValidationError as error:
        located = [(location_in(tables, each["loc"]), each) for each in error.errors()]
        return [(tuple(keys), _message(".".join(keys), fault)) for keys, fault in located]
    return []


def _message(key: str, fault: Mapping[str, Any]) -> str:
    if fault["type"] in {"model_type", "model_attributes_type"}:
        first = {"agent": "name", "sandbox": "provider", "branch": "kind", "keep": "which"}
        return (
            f"it is a table; did you mean '{key}.{first[key]}'?"
            if key in first
            else "it is a table"
        )
    if fault["type"] == "union_tag_not_found":
        return "it has no 'kind'"
    return fault_of(RunConfig, fault).removeprefix("Value error, ")


def location_in(tables: Mapping[str, Any], location: tuple[str | int, ...]) -> list[str]:
    """Return a fault's location in `tables`, without the tags that pydantic adds for a union."""
    keys: list[str] = []
    *above, last = location
    for part in above:
        if part in tables:
            tables = tables[str(part)]
            keys.append(str(part))
    return [*keys, str(last)]
