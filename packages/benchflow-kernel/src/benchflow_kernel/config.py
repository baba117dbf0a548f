"""RolloutConfig: everything that shapes a rollout and is not the task.

The text below a field is also the help of the flag that sets the field.
"""

import os
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from benchflow_contracts import (
    CallBudget,
    Endpoint,
    Fidelity,
    Model,
    ResourceLimits,
    RewardFiles,
    Role,
)
from benchflow_contracts.gateway import MAX_TOKEN_SEC
from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, model_validator


class Turn(Model):
    """One prompt to one role. `prompt=None` is the task's instruction."""

    role: str = "agent"
    prompt: str | None = None


class Scene(Model):
    """A declared span with its own roles and skills: authoring sugar.

    It lowers to per-turn configuration and has no object at run time.
    """

    name: str = "main"
    roles: tuple[Role, ...] = Field(min_length=1)
    turns: tuple[Turn, ...] = (Turn(),)
    skills: tuple[str, ...] | None = None
    """Overrides the roles' skills within this scene."""


class BranchBudget(Model):
    """Limits of the branching of one rollout.

    A reached limit is not a failure: the rollout continues without forks, and the tree has the
    reason.
    """

    max_children: int = Field(default=8, ge=2)
    """Most children of one fork."""
    max_depth: int = Field(default=1, ge=1)
    """Most forks on a path."""
    max_forks: int | None = Field(default=None, ge=1)
    """Most forks of a rollout (default: no limit)."""
    concurrency: int = Field(default=2, ge=1)
    """Children that run at once."""
    wall_sec: float | None = Field(default=None, gt=0)
    """Seconds after which no more forks start (default: no limit)."""
    tokens: int | None = Field(default=None, ge=1)
    """Tokens of model calls after which no more forks start (default: no limit)."""
    disk_mb: int | None = Field(default=None, gt=0)
    """Disk of checkpoints, in MB, at which no more forks start (default: no limit)."""
    memory_mb: int | None = Field(default=None, gt=0)
    """Free memory, in MB, below which no fork starts (default: no limit)."""


class _Branch(Model):
    budget: BranchBudget = BranchBudget()
    require: Fidelity | None = None
    """Lowest fidelity of a fork (default: the best one available). A fork below fails."""
    then: "BranchPolicy | None" = None
    """How children fork in turn; `None` is the same policy again, within the budget.

    Each policy counts its own children and depth. The outermost one's other bounds hold
    for the whole rollout.
    """


class AskUserBranch(_Branch):
    """Fork at each branchable question: one child per option."""

    kind: Literal["ask-user"] = "ask-user"


class GroupBranch(_Branch):
    """Fork once into `n` children that share the prefix: a GRPO group as a tree."""

    kind: Literal["group"] = "group"
    n: int = Field(default=4, ge=1)
    """Children of `group`, `value` and `best-of`."""
    at: int = Field(default=0, ge=0)
    """Turn before which `group` and `best-of` fork, from 0."""
    at_call: int | None = Field(default=None, ge=1)
    """Model call at which `group` forks instead of before a turn, from 1. Answered calls of the
    agent's work count. Each child gets its own answer to this call."""

    @model_validator(mode="after")
    def _check_place(self) -> "GroupBranch":
        # Not a bound of the field, which is also the flag of `value`.
        if self.n < 2:
            raise ValueError(f"a group has at least 2 children, not {self.n}")
        if self.at_call is not None and self.at:
            raise ValueError("a group forks before a turn (at) or at a model call (at_call)")
        return self


class ValueBranch(_Branch):
    """Estimate V(s) along the path: `n` children at each `every`-th state.

    A state is the start of a turn or a question to the user. The children are scored. The path
    then continues independently of them, and its own return counts beside theirs.
    """

    kind: Literal["value"] = "value"
    n: int = Field(default=4, ge=1)
    every: int = Field(default=1, ge=1)
    """Turn starts and questions from one fork of `value` to the next."""
    every_call: int | None = Field(default=None, ge=1)
    """Model calls from one fork of `value` to the next, instead of turn starts and questions."""
    call_share: float | None = Field(default=None, gt=0, le=1)
    """Probability that `value` forks at a model call, instead of at turn starts and questions.
    The calls are chosen at random, as in Tree-GRPO."""
    seed: int = 0
    """Seed of the choice of model calls. The same seed and rollout id choose the same calls."""

    @property
    def at_calls(self) -> bool:
        """Whether the states are model calls."""
        return self.every_call is not None or self.call_share is not None

    @model_validator(mode="after")
    def _check_calls(self) -> "ValueBranch":
        if self.every_call is not None and self.call_share is not None:
            raise ValueError("choose each n-th call (every_call) or random calls (call_share)")
        if self.at_calls and self.every > 1:
            raise ValueError("every counts turns and questions, and the forks are at model calls")
        return self


class BestOfBranch(_Branch):
    """Fork into `n` children, score each after its turn, and go on from the best.

    The others stay in the tree as scored leaves.
    """

    kind: Literal["best-of"] = "best-of"
    n: int = Field(default=4, ge=2)
    at: int = Field(default=0, ge=0)
    """The turn that every child runs before they are compared."""


class CallerBranch(_Branch):
    """Fork where the program that acts as the agent asks for it: one child per option.

    The program may hold all children at once. So they do not wait for a slot of the machine, and
    `budget.concurrency` must be the number of worlds that the program may have.
    """

    kind: Literal["caller"] = "caller"


BranchPolicy = Annotated[
    AskUserBranch | GroupBranch | ValueBranch | BestOfBranch | CallerBranch,
    Field(discriminator="kind"),
]
for _policy in (AskUserBranch, GroupBranch, ValueBranch, BestOfBranch, CallerBranch):
    # From pydantic 2.14 on, `model_fields` has the forward reference of `then` without this.
    _policy.model_rebuild(force=True)


class Keep(Model):
    """Which checkpoints outlive their rollout, so that it can be branched afterwards."""

    which: Literal["none", "forks", "all"] = "none"
    """Checkpoints that stay after the rollout, for `bench rollout branch` and `resume`."""
    budget_mb: int = Field(default=2048, gt=0)
    """Most disk for the saved checkpoints of a rollout, in MB. The oldest are deleted first."""


class Deadlines(Model):
    """How long each phase of the lifecycle may take, in seconds."""

    start: float = Field(default=120, gt=0)
    provision: float = Field(default=300, gt=0)
    connect: float = Field(default=120, gt=0)
    execute: float = Field(default=7200, gt=0)
    verify: float = Field(default=900, gt=0)
    teardown: float = Field(default=60, gt=0)


def _http_url(url: str) -> str:
    example = "such as http://127.0.0.1:8000/v1"
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"it is not an http(s) URL, {example}")
    try:
        host = urlsplit(url)
        valid = bool(host.hostname) and (host.port is None or host.port > 0)
    except ValueError:
        valid = False
    if not valid:
        raise ValueError(f"it does not name a host and a port from 1 to 65535, {example}")
    return url


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError("it is not an address with a port, such as 127.0.0.1:8443")
    return text


_NOT_SAMPLING: Final = frozenset(
    {
        "input",
        "instructions",
        "logprobs",
        "messages",
        "model",
        "n",
        "prompt",
        "response_format",
        "return_token_ids",
        "seed",
        "stream",
        "stream_options",
        "system",
        "tool_choice",
        "tools",
        "top_logprobs",
    }
)
"""Fields of a request that are not sampling: another value would change what is recorded."""


def _sampling(values: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if wrong := _NOT_SAMPLING & values.keys():
        raise ValueError(f"{min(wrong)!r} is not a sampling parameter that can be set")
    return values


UsdPerMtok = tuple[
    Annotated[float, Field(ge=0, allow_inf_nan=False)],
    Annotated[float, Field(ge=0, allow_inf_nan=False)],
]
"""US dollars for a million input tokens, and for a million output tokens."""


class AccessConfig(Model):
    """How a sandbox reaches the gateway, and how others reach the gateway from outside."""

    mode: Literal["tunnel", "egress", "token", "auto"] = "tunnel"
    """How a sandbox reaches the model. `tunnel`: the provider carries each call to this machine.
    `egress`: the sandbox asks --gateway-url, and its provider adds the token outside of it.
    `token`: the sandbox has the URL and the token. `auto`: the first of these that works."""
    gateway_url: str | None = None
    """URL by which sandboxes reach the gateway on this machine, for `egress` and `token`."""
    bind: Annotated[str, AfterValidator(_address)] = "127.0.0.1:8443"
    """Address and port of the gateway for --gateway-url. All but the loopback need TLS."""
    tls_cert: Path | None = None
    """PEM file with the certificate of the gateway and its chain."""
    tls_key: Path | None = None
    """PEM file with the key of the certificate."""
    token_sec: float = Field(default=3600, gt=0, le=MAX_TOKEN_SEC)
    """Seconds until a token ends, and the agent's work with it. The deadline of the rollout may be
    earlier."""
    token_calls: int = Field(default=1000, ge=1)
    """Most model calls with one token. Then the agent's work ends."""
    token_tokens: int | None = Field(default=None, ge=1)
    """Tokens of model calls at which one token ends (default: no limit)."""
    token_usd: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """US dollars at which one token ends (default: no limit); needs --usd-per-mtok."""

    @property
    def budget(self) -> CallBudget:
        """The limits of one token."""
        return CallBudget(calls=self.token_calls, tokens=self.token_tokens, cost_usd=self.token_usd)

    @model_validator(mode="after")
    def _check_mode(self) -> "AccessConfig":
        if self.mode in {"egress", "token"} and self.gateway_url is None:
            raise ValueError(f"{self.mode!r} needs the URL of the gateway (--gateway-url)")
        return self


class ModelConfig(Model):
    """The model endpoint of agents that act through a model, and the gateway before it."""

    base_url: Annotated[str, AfterValidator(_http_url)] | None = None
    """URL of the model endpoint (default: none; the agent has no model)."""
    api_key_env: str = "BENCHFLOW_API_KEY"
    """Variable on this machine with the endpoint's key. The key never enters the sandbox."""
    upstream: Literal["same", "openai", "vllm", "anthropic", "auto"] = "same"
    """Protocol of the endpoint. `same` is the agent's own protocol; for the others, calls are
    translated. `vllm` also returns the token ids and log-probabilities that training needs. `auto`
    asks the endpoint once for one token: with token ids it is `vllm`, else `openai`."""
    require_tokens: bool = False
    """Refusal of a model endpoint whose answers cannot be trained on; one token is requested."""
    gateway: bool = True
    """Record of every model call, for replay and for training."""
    sampling: Annotated[dict[str, JsonValue], AfterValidator(_sampling)] = Field(
        default_factory=dict[str, JsonValue]
    )
    """Sampling parameters that the gateway sets in each call of the agent, by their names in Chat
    Completions, such as `temperature`, `top_p` and `max_tokens`. They replace the agent's own."""
    seed: int | None = Field(default=None, ge=0, lt=2**31)
    """Seed from which the gateway sets another one in each call of the agent, if the protocol of
    the endpoint has seeds (default: the seed of the rollout, or else the agent's own)."""
    usd_per_mtok: UsdPerMtok | None = None
    """US dollars for a million input and output tokens (default: no cost is known)."""
    record_mb: int = Field(default=512, gt=0)
    """Most disk for the recorded model calls of a rollout, in MB. At the limit the agent's work
    ends, and what is there is graded."""

    access: AccessConfig = AccessConfig()

    @model_validator(mode="after")
    def _check_access(self) -> "ModelConfig":
        if self.access.mode in {"egress", "token"} and not self.gateway:
            raise ValueError(f"model access {self.access.mode!r} needs the gateway")
        if self.access.token_usd is not None and self.usd_per_mtok is None:
            raise ValueError("token_usd needs the prices of the model (usd_per_mtok)")
        return self

    def endpoint(self) -> Endpoint | None:
        """Return the endpoint with its key from this process's variables, or None without one."""
        return None if self.base_url is None else _keyed(self.base_url, self.api_key_env)


class JudgeConfig(Model):
    """The model that rewards may ask. Its calls are recorded apart from those of the agent."""

    base_url: Annotated[str, AfterValidator(_http_url)] | None = None
    """URL of the model endpoint of judges (default: none; a task of the verifier type `judge` asks
    the endpoint of --base-url, and its calls are not recorded)."""
    model: str | None = None
    """Model that judges ask at --judge-url, whatever model a reward names."""
    api_key_env: str = "BENCHFLOW_JUDGE_API_KEY"
    """Variable on this machine with the key of the judge's endpoint."""
    upstream: Literal["same", "openai", "vllm", "anthropic"] = "same"
    """Protocol of the judge's endpoint; `same` is that of the reward's request."""
    max_calls: int | None = Field(default=None, ge=1)
    """Most calls of a judge for one node (default: no limit). Over the limit the node has no
    reward."""
    usd_per_mtok: UsdPerMtok | None = None
    """US dollars for a million input and output tokens of the judge (default: no cost is known)."""
    record_mb: int = Field(default=64, gt=0)
    """Most disk for the recorded calls of judges of a rollout, in MB."""

    def endpoint(self) -> Endpoint | None:
        """Return the endpoint with its key from this process's variables, or None without one."""
        return None if self.base_url is None else _keyed(self.base_url, self.api_key_env)

    @model_validator(mode="after")
    def _check_model(self) -> "JudgeConfig":
        if (self.base_url is None) != (self.model is None):
            raise ValueError("a judge has both an endpoint (base_url) and a model")
        return self


def _keyed(url: str, variable: str) -> Endpoint:
    key = os.environ.get(variable)
    headers = {"Authorization": f"Bearer {key}", "x-api-key": key} if key else {}
    return Endpoint(url=url, headers=headers)


class UserConfig(Model):
    """The user model of a rollout."""

    mode: Literal["scripted", "simulated", "auto", "human"] | None = None
    """User model (default: the task's)."""
    model: str | None = None
    """Model behind a simulated user or a judge (default: --model)."""


CaptureState = Literal["none", "leaves", "forks", "all"]
"""The nodes whose state is recorded. Each value but `none` includes the ones before it."""


def _without_bool(value: object) -> object:
    """Return the word for a bool, which records of version 0.8 have."""
    return {True: "forks", False: "none"}[value] if isinstance(value, bool) else value


class RolloutSettings(Model):
    """What one rollout is run with, except its roles and turns."""

    model: ModelConfig = ModelConfig()
    user: UserConfig = UserConfig()
    judge: JudgeConfig = JudgeConfig()
    skill_mode: Literal["no-skill", "with-skill"] = "no-skill"
    """Skills for the agent: the task's (`with-skill`), or none."""
    skills_dir: Path | None = None
    """Directory of skills, instead of the task's."""
    isolation: Literal["hermetic", "twin", "shared"] | None = None
    """Isolation of the grading (default: the task's)."""
    reward_files: RewardFiles | None = None
    """Protection of foreign tasks' reward files (default: the task's). `strict`: only the
    verifier's user may write them, and only one may exist. `open`: every user may write them,
    and reward.json is read before reward.txt."""
    expects_changes: tuple[str, ...] = ()
    """System path, or a pattern, that honest agents change. Repeatable."""
    offline: bool = False
    """No network for tasks, also for those that ask for one. Agents still reach their model."""
    forward_env: tuple[str, ...] = ()
    """Name of a variable on this machine that tasks and compose files may use as `${NAME}`. Its
    value is not recorded. Repeatable."""
    timeout_multiplier: float = Field(default=1, gt=0, allow_inf_nan=False)
    """Factor for the time limits of tasks: agent, tests and image."""
    capture_state: Annotated[CaptureState, BeforeValidator(_without_bool)] = "forks"
    """Nodes whose environment state is recorded, for rewards and `bench rollout diff`: the leaves,
    also the root and the forks, also the start of every turn (`all`), or `none`."""
    keep: Keep = Keep()
    branch: BranchPolicy | None = None
    limits: ResourceLimits | None = None
    """Resources of the sandbox, instead of the task's."""
    seed: int | None = Field(default=None, ge=0, lt=2**31)
    """Seed of the rollout: of the environment, of the model calls, and of a simulated user
    (default: none). A resumed or branched rollout keeps the seed."""
    deadline_sec: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Seconds for the rollout until its grading (default: no limit). When they have passed, the
    agents' work ends, and what is there is graded."""
    deadlines: Deadlines = Deadlines()


class RolloutConfig(RolloutSettings):
    """What one rollout is run with."""

    scenes: tuple[Scene, ...] = (Scene(roles=(Role(),)),)

    @classmethod
    def single(cls, agent: str, *, model: str | None = None) -> "RolloutConfig":
        """Return the usual case: one agent, one turn, the task's instruction."""
        return cls(scenes=(Scene(roles=(Role(agent=agent, model=model),)),))
