"""RunOptions: what an operator chooses for a rollout, and its RolloutConfig."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from benchflow_contracts import (
    AdapterOptions,
    Fidelity,
    Keep,
    Model,
    ModelEndpoint,
    PullPolicy,
    RewardFiles,
    Role,
    RolloutConfig,
    Scene,
    UsageError,
)
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
    """A registry name, another name of such an agent (`claude-code`, `codex`, `gemini-cli`,
    `qwen-code`), or the path of an agent's TOML declaration."""
    agent_import_path: str | None = None
    """`module:attr` of an Agent; only ever from the operator."""
    agent_env: dict[str, str] = Field(default_factory=dict)
    """Variables of the agent, as `--agent-env.NAME VALUE` or a table of --config."""
    agent_idle_timeout: float = Field(default=600, gt=0)
    """Seconds without any update from the agent before its turn is ended."""
    model: str | None = None
    """The model that the agent asks the endpoint for."""
    reasoning_effort: str | None = None
    """Passed to an agent that declares how it takes one."""
    base_url: str | None = None
    """The model endpoint behind the relay. `None`: the sandbox reaches nothing."""
    api_key_env: str = "BENCHFLOW_API_KEY"
    """The host's variable with the endpoint's key. It never enters the sandbox."""
    upstream: Literal["same", "openai", "vllm", "anthropic"] = "same"
    """What the endpoint speaks: the agent's own wire, or the one that calls are translated to.
    `vllm` is asked for token ids and log-probabilities, which training needs."""
    gateway: bool = True
    """Record every model call, and answer the recorded ones in a replay."""
    model_record_mb: int = Field(default=512, gt=0)
    """Disk for the recorded model calls of a rollout. Its agent's work ends and is graded as it
    stands when they take more."""
    sandbox: str = "local"
    """The registry name of a sandbox provider."""
    sandbox_import_path: str | None = None
    """`module:attr` that makes the sandbox provider instead; only ever from the operator."""
    allow_unisolated: bool = False
    """Run without namespaces where the machine has none; never for untrusted agents."""
    timeout_multiplier: float = Field(default=1, gt=0, allow_inf_nan=False)
    """Times what tasks give their agent, their tests and their images."""
    pull: PullPolicy | None = None
    """When a sandbox that fetches images does so; else $BENCHFLOW_DOCKER_PULL says it."""
    environment_manifest: Path | None = None
    """`None` looks for `environment.toml` in the task and in its benchmark."""
    environment_import_path: str | None = None
    """`module:attr` that makes the environment instead; only ever from the operator."""
    reward_import_path: str | None = None
    """`module:attr` that makes the rewards instead; only ever from the operator."""
    skill_mode: Literal["no-skill", "with-skill"] = "no-skill"
    """Whether the agent is shown the task's skills, in its own native way."""
    skills_dir: Path | None = None
    """Skills to show instead of the task's."""
    isolation: Literal["hermetic", "twin", "shared"] | None = None
    """Overrides the box that the task is graded in."""
    offline: bool = False
    """Give tasks no network, also where they ask for one; agents reach their model all the same."""
    forward_env: tuple[str, ...] = ()
    """A variable of yours that tasks and their compose files may have where they ask for
    `${NAME}`; no other leaves this process. May be given again. Its value is never recorded."""
    force_build: bool = False
    """Build a task's Dockerfile also where the task names an image."""
    trust_host_access: bool = False
    """Let compose files of tasks mount and read paths of this machine, which they may change."""
    expects_changes: tuple[str, ...] = ()
    """A path of the system, or a pattern, that honest agents change. May be given again."""
    reward_files: RewardFiles | None = None
    """Overrides how reward files of Harbor's protocol are protected and read. `strict`: only the
    verifier's user may write them, and only one may exist. `harbor`: every user may write them,
    and reward.json is read before reward.txt."""
    user: Literal["scripted", "simulated", "auto", "human"] | None = None
    """Overrides the task's User Model."""
    user_model: str | None = None
    """The model behind a simulated user or a judge."""
    branch: BranchKind | None = None
    """Fork the rollout: at each question (`ask-user`), once into a group (`group`), at every turn
    and question to estimate V (`value`), or to go on from the best child (`best-of`)."""
    branch_n: int = Field(default=4, ge=2)
    """Children of `group`, `value` and `best-of`."""
    branch_at: int = Field(default=0, ge=0)
    """The turn before which `group` and `best-of` fork, from 0."""
    branch_every: int = Field(default=1, ge=1)
    """Turn starts and questions from one fork of `value` to the next."""
    branch_then: BranchKind | None = None
    """How the children fork in turn; the same policy again by default, within --branch-depth."""
    branch_require: Fidelity | None = None
    """Refuse to fork below `live`, `state` or `replay`."""
    branch_children: int = Field(default=8, ge=2)
    """The most children of one fork."""
    branch_depth: int = Field(default=1, ge=1)
    """The most forks on a path."""
    branch_forks: int | None = Field(default=None, ge=1)
    """The most forks of a rollout."""
    branch_concurrency: int = Field(default=2, ge=1)
    """Children that run at once."""
    branch_wall_sec: float | None = Field(default=None, gt=0)
    """Fork no more after so many seconds."""
    branch_tokens: int | None = Field(default=None, ge=1)
    """Fork no more after so many tokens of model calls."""
    branch_disk_mb: int | None = Field(default=None, gt=0)
    """Fork no more while checkpoints hold so much."""
    branch_memory_mb: int | None = Field(default=None, gt=0)
    """Fork only while the machine has so much memory free."""
    keep: Literal["none", "forks", "all"] = "none"
    """Which checkpoints outlive the rollout, for `bench rollout branch`."""
    keep_mb: int = Field(default=2048, gt=0)
    """Disk for kept checkpoints, per rollout; the oldest are dropped first."""

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

    def endpoint(self) -> ModelEndpoint | None:
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
        return ModelEndpoint(upstream=self.base_url, headers=headers)

    def rollout_config(self, labels: Mapping[str, str] | None = None) -> RolloutConfig:
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
            labels=labels or {},
        )
