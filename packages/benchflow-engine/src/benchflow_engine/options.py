"""RunOptions: the options of a rollout that the operator sets, and its RolloutConfig."""

import os
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from benchflow_contracts import (
    AdapterOptions,
    Endpoint,
    Fidelity,
    Model,
    PullPolicy,
    RewardFiles,
    Role,
    RolloutIdentity,
    UsageError,
)
from benchflow_kernel import Keep, RolloutConfig, Scene
from benchflow_store import RanWith
from pydantic import Field, field_validator

from .branching import BranchKind, policy_of

AGENT_ALIASES: Final = {
    "claude-code": "claude-agent-acp",
    "codex": "codex-acp",
    "gemini-cli": "gemini",
    "qwen-code": "qwen",
}
"""Names that other tools give to agents, with those of the registry."""


class RunOptions(Model):
    """Everything that shapes a rollout and is not the task itself."""

    agent: str = "oracle"
    """Agent: a registry name, another tool's name for such an agent (`claude-code`, `codex`,
    `gemini-cli`, `qwen-code`), or the path of a TOML declaration."""
    agent_import_path: str | None = None
    """Import path `module:attr` of an Agent, instead of --agent."""
    agent_env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the agent: `--agent-env.NAME VALUE`, or a table in --config."""
    agent_idle_timeout: float = Field(default=600, gt=0)
    """Seconds without an update from the agent before its turn ends."""
    model: str | None = None
    """Model name that the agent sends to the endpoint (default: the agent's own)."""
    reasoning_effort: str | None = None
    """Reasoning effort, for an agent that declares how it takes one (default: the agent's own)."""
    base_url: str | None = None
    """URL of the model endpoint (default: none; the agent has no model)."""
    api_key_env: str = "BENCHFLOW_API_KEY"
    """Variable on this machine with the endpoint's key. The key never enters the sandbox."""
    upstream: Literal["same", "openai", "vllm", "anthropic"] = "same"
    """Protocol of the endpoint. `same` is the agent's own protocol; for the others, calls are
    translated. `vllm` also returns the token ids and log-probabilities that training needs."""
    gateway: bool = True
    """Record of every model call, for replay and for training."""
    model_record_mb: int = Field(default=512, gt=0)
    """Most disk for the recorded model calls of a rollout, in MB. At the limit the agent's work
    ends, and what is there is graded."""
    sandbox: str = "local"
    """Sandbox provider: a registry name."""
    sandbox_import_path: str | None = None
    """Import path `module:attr` of a sandbox provider, instead of --sandbox."""
    allow_unisolated: bool = False
    """Permission to run without namespaces on a machine that has none; not for untrusted agents."""
    timeout_multiplier: float = Field(default=1, gt=0, allow_inf_nan=False)
    """Factor for the time limits of tasks: agent, tests and image."""
    pull: PullPolicy | None = None
    """Image pull policy (default: $BENCHFLOW_DOCKER_PULL, then `missing`)."""
    environment_manifest: Path | None = None
    """Environment manifest (default: `environment.toml` of the task or of its benchmark)."""
    environment_import_path: str | None = None
    """Import path `module:attr` of an environment, instead of a manifest."""
    reward_import_path: str | None = None
    """Import path `module:attr` of the rewards, instead of the task's."""
    skill_mode: Literal["no-skill", "with-skill"] = "no-skill"
    """Skills for the agent: the task's (`with-skill`), or none."""
    skills_dir: Path | None = None
    """Directory of skills, instead of the task's."""
    isolation: Literal["hermetic", "twin", "shared"] | None = None
    """Isolation of the grading (default: the task's)."""
    offline: bool = False
    """No network for tasks, also for those that ask for one. Agents still reach their model."""
    forward_env: tuple[str, ...] = ()
    """Name of a variable on this machine that tasks and compose files may use as `${NAME}`. Its
    value is not recorded. Repeatable."""
    force_build: bool = False
    """Build of the task's Dockerfile, also if the task names an image."""
    trust_host_access: bool = False
    """Permission for compose files of tasks to mount paths of this machine and to change them."""
    expects_changes: tuple[str, ...] = ()
    """System path, or a pattern, that honest agents change. Repeatable."""
    reward_files: RewardFiles | None = None
    """Protection of foreign tasks' reward files (default: the task's). `strict`: only the
    verifier's user may write them, and only one may exist. `open`: every user may write them,
    and reward.json is read before reward.txt."""
    user: Literal["scripted", "simulated", "auto", "human"] | None = None
    """User model (default: the task's)."""
    user_model: str | None = None
    """Model behind a simulated user or a judge (default: --model)."""
    branch: BranchKind | None = None
    """Fork policy (default: none): at each question (`ask-user`), once into a group (`group`), at
    every turn and question to estimate V (`value`), or to continue from the best child
    (`best-of`)."""
    branch_n: int = Field(default=4, ge=2)
    """Children of `group`, `value` and `best-of`."""
    branch_at: int = Field(default=0, ge=0)
    """Turn before which `group` and `best-of` fork, from 0."""
    branch_every: int = Field(default=1, ge=1)
    """Turn starts and questions from one fork of `value` to the next."""
    branch_then: BranchKind | None = None
    """Fork policy of the children (default: the same policy, within --branch-depth)."""
    branch_require: Fidelity | None = None
    """Lowest fidelity of a fork (default: the best one available). A fork below fails."""
    branch_children: int = Field(default=8, ge=2)
    """Most children of one fork."""
    branch_depth: int = Field(default=1, ge=1)
    """Most forks on a path."""
    branch_forks: int | None = Field(default=None, ge=1)
    """Most forks of a rollout (default: no limit)."""
    branch_concurrency: int = Field(default=2, ge=1)
    """Children that run at once."""
    branch_wall_sec: float | None = Field(default=None, gt=0)
    """Seconds after which no more forks start (default: no limit)."""
    branch_tokens: int | None = Field(default=None, ge=1)
    """Tokens of model calls after which no more forks start (default: no limit)."""
    branch_disk_mb: int | None = Field(default=None, gt=0)
    """Disk of checkpoints, in MB, at which no more forks start (default: no limit)."""
    branch_memory_mb: int | None = Field(default=None, gt=0)
    """Free memory, in MB, below which no fork starts (default: no limit)."""
    keep: Literal["none", "forks", "all"] = "none"
    """Checkpoints that stay after the rollout, for `bench rollout branch`."""
    keep_mb: int = Field(default=2048, gt=0)
    """Most disk for the saved checkpoints of a rollout, in MB. The oldest are deleted first."""

    @field_validator("agent")
    @classmethod
    def _registry_name(cls, name: str) -> str:
        return AGENT_ALIASES.get(name, name)

    @property
    def agent_name(self) -> str:
        """The name under which the agent is registered for this run."""
        return self.agent_import_path or self.agent

    @property
    def sandbox_name(self) -> str:
        """The name of the sandbox provider in records."""
        return self.sandbox_import_path or self.sandbox

    @property
    def ran_with(self) -> RanWith:
        """What the record of a rollout names."""
        return RanWith(agent=self.agent_name, model=self.model, sandbox=self.sandbox_name)

    def adapter_options(self) -> AdapterOptions:
        """Return what tasks of other formats are allowed."""
        return AdapterOptions(
            forward_env=self.forward_env,
            trust_host_access=self.trust_host_access,
            force_build=self.force_build,
        )

    def endpoint(self) -> Endpoint | None:
        """Return the model endpoint with its credential from the host's environment."""
        if self.base_url is None:
            return None
        if not self.base_url.startswith(("http://", "https://")):
            raise UsageError(
                f"--base-url {self.base_url!r} is not an http(s) URL",
                hint="for example http://127.0.0.1:8000/v1",
            )
        try:
            host = urlsplit(self.base_url)
            valid = bool(host.hostname) and (host.port is None or host.port > 0)
        except ValueError:
            valid = False
        if not valid:
            raise UsageError(
                f"--base-url {self.base_url!r} does not name a host and a port from 1 to 65535",
                hint="for example http://127.0.0.1:8000/v1",
            )
        key = os.environ.get(self.api_key_env)
        headers = {"Authorization": f"Bearer {key}", "x-api-key": key} if key else {}
        return Endpoint(url=self.base_url, headers=headers)

    def rollout_config(self, identity: RolloutIdentity | None = None) -> RolloutConfig:
        """Return the kernel's configuration of one rollout."""
        role = Role(
            agent=self.agent_name,
            model=self.model,
            reasoning_effort=self.reasoning_effort,
            env=self.agent_env,
            idle_timeout_sec=self.agent_idle_timeout,
        )
        return RolloutConfig(
            scenes=(Scene(roles=(role,)),),
            branch=policy_of(self),
            keep=Keep(which=self.keep, budget_mb=self.keep_mb),
            skill_mode=self.skill_mode,
            skills_dir=self.skills_dir,
            model=self.endpoint(),
            isolation=self.isolation,
            offline=self.offline,
            timeout_multiplier=self.timeout_multiplier,
            user=self.user,
            forward_env=self.forward_env,
            expects_changes=self.expects_changes,
            reward_files=self.reward_files,
            identity=identity or RolloutIdentity(),
        )
