"""The messages of the rollout service, as JSON bodies of its HTTP interface.

A rollout is `queued`, then `running`, then `ended`. A parked rollout is a sealed checkpoint: it
uses no sandbox, and continues when it is resumed.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from benchflow_contracts import Cause, Fidelity, Grading, Integrity, Model, NodeError
from benchflow_contracts.sample import AnswerSource, TrainingOptions
from pydantic import Field, JsonValue, SecretStr, StringConstraints, model_validator

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
"""A name that is safe in a path of a URL."""

TaskId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,255}$")]
"""The id of a task, such as `fix-tests` or `acme/fix-tests`."""

RolloutState = Literal["queued", "running", "parked", "ended"]

Outcome = Literal["scored", "unscored", "cancelled", "dropped", "lost"]
"""How a rollout ended. `unscored`: a fault, and never a reward of 0. `cancelled`: by a client.
`dropped`: its policy version was too old. `lost`: the server ended while the rollout ran."""

OnRestart = Literal["lost", "rerun"]
"""What becomes of a rollout that ran without a checkpoint when its server was killed. `rerun`: it
runs again from its begin, at most three times. Only for a sandbox without a network."""

Render = Literal["leaves", "graph", "turns", "messages"]
"""The form of a result. `leaves`: one sample for each leaf. `graph`: the whole tree, each token
once. `turns`: one row for each model call. `messages`: chats without token ids."""

InFlight = Literal["finish", "swap", "park", "drop"]
"""What running rollouts of a policy do at an update. `finish`: they keep the old weights.
`swap`: the next model call of each goes to the new weights. `park`: each is sealed into a
checkpoint. `drop`: each is cancelled."""

Upstream = Literal["same", "openai", "vllm", "anthropic", "auto"]
"""The protocol of a model endpoint; see `ModelConfig.upstream` of the kernel. With `auto`, the
service asks the endpoint once for one token."""

TokenLevel = Literal["tokens+logprobs", "tokens", "text"]
"""What the answers of a model endpoint have. Only `tokens+logprobs` can be trained on."""


class ModelEndpoint(Model):
    """A model server that the service can reach."""

    url: Annotated[str, StringConstraints(pattern=r"^https?://[^\s/?#@]+([/?#]\S*)?$")]
    """Without a user or a password: the service shows and stores the address."""
    model: str
    """The name of the model in requests."""
    upstream: Upstream = "vllm"
    api_key: SecretStr | None = None
    """The service keeps the key in memory, and never writes or returns it."""


class InlineFile(Model):
    """A file of an inline task: exactly one of `text` and `base64`."""

    text: str | None = None
    base64: str | None = None
    executable: bool = False

    @model_validator(mode="after")
    def _has_one_content(self) -> Self:
        if (self.text is None) == (self.base64 is None):
            raise ValueError("a file has exactly one of 'text' and 'base64'")
        return self


class InlineTask(Model):
    """A task that the request has itself, as the files of its directory."""

    id: Name
    files: Mapping[str, InlineFile] = Field(min_length=1)
    """The files by their path in the task's directory, such as `task.toml`."""


class GroupPlace(Model):
    """The place of a rollout in a group of one task at one policy version."""

    id: Name
    size: int = Field(ge=1, le=4096)
    index: int = Field(ge=0)

    @model_validator(mode="after")
    def _is_in_range(self) -> Self:
        if self.index >= self.size:
            raise ValueError(f"index {self.index} is not below the size {self.size}")
        return self


class RolloutBudget(Model):
    """What the model calls of a rollout may use (default: what the server allows)."""

    tokens: int | None = Field(default=None, ge=1)
    """Input and output tokens of all calls together."""
    cost_usd: float | None = Field(default=None, gt=0, allow_inf_nan=False)


class RolloutRequest(Model):
    """One rollout. What is left out is as the server was started."""

    task: TaskId | InlineTask
    """The id of a task of the server, or a task."""
    group: GroupPlace | None = None
    agent: str | None = None
    """A name that the server allows (default: the server's agent)."""
    policy: Name | None = None
    """A registered policy. The rollout gets the weights of the moment when it starts."""
    endpoint: ModelEndpoint | None = None
    """A model endpoint, instead of a policy."""
    sampling: Mapping[str, JsonValue] = {}
    """Set in each model call of the agent: `temperature`, `top_p`, `max_tokens`, and others."""
    branch: Mapping[str, JsonValue] | None = None
    """The table `[branch]` of a configuration file, such as `{"kind": "group", "n": 4}`."""
    seed: int | None = Field(default=None, ge=0, lt=2**31)
    """Of the environment, of a simulated user, and of the model calls, each with another value."""
    deadline_sec: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """The longest time that the rollout may run (default: what the server allows)."""
    budget: RolloutBudget = RolloutBudget()
    """A rollout above its budget is ended without a score."""
    on_restart: OnRestart | None = None
    """Default: the server's choice."""
    priority: int = Field(default=0, ge=-1000, le=1000)
    """A rollout with a greater priority starts before the others in the queue."""
    render: Render = "leaves"
    training: TrainingOptions = TrainingOptions()

    @model_validator(mode="after")
    def _has_one_model(self) -> Self:
        if self.policy is not None and self.endpoint is not None:
            raise ValueError("a rollout has a 'policy' or an 'endpoint', not both")
        return self


class LeafScore(Model):
    """A leaf of a rollout whose work has ended."""

    node: str
    reward: float | None
    """`None`: the leaf has no score."""
    answer: AnswerSource = "user"
    fidelity: Fidelity | None = None
    grading: Grading | None = None
    integrity: Integrity | None = None


class RolloutStatus(Model):
    """A rollout of the service, without its result."""

    id: str
    state: RolloutState
    outcome: Outcome | None = None
    """`None` before the rollout ended."""
    task: str
    """The id of the task."""
    task_digest: str | None = None
    group: GroupPlace | None = None
    policy: str | None = None
    started_version: str | None = None
    """The policy version at the start."""
    policy_versions: Sequence[str] = ()
    """The versions that its model calls went to, in order."""
    priority: int = 0
    queue_position: int | None = None
    """0 is the next one to start; `None` outside the queue."""
    created_at: float
    """Seconds since the epoch, as all times here."""
    attempts: int = 0
    """How often a run of it was begun. A run that continues a checkpoint counts too."""
    park_refusal: str | None = None
    """Why the last request to park it was refused, while it runs."""
    started_at: float | None = None
    ended_at: float | None = None
    is_acknowledged: bool = False
    reward: float | None = None
    """V of the root; `None` without a score."""
    leaves: Sequence[LeafScore] = ()
    error: NodeError | None = None
    """Why the rollout does not have a score."""
    cause: Cause | None = None


class RolloutResult(Model):
    """What an ended rollout gives to a trainer."""

    rollout: RolloutStatus
    render: Render
    samples: Sequence[Mapping[str, Any]] = ()
    """Rows of the chosen form. Empty if nothing may be trained on."""
    left_out: Mapping[str, int] = {}
    """The number of leaves that were left out, by reason."""
    shared_prefix: Literal["once", "per_leaf"] = "per_leaf"
    """Whether the tokens before a fork are in one row or in the row of each leaf."""


EventKind = Literal[
    "queued", "running", "leaf", "swapped", "park_refused", "parked", "resumed", "rerun", "ended"
]
"""`park_refused`: it cannot be saved, and runs on. `rerun`: a restarted server runs it again from
its begin, so the leaves before this event do not count."""


class RolloutEvent(Model):
    """One event of a rollout, in its stream."""

    id: int = Field(ge=1)
    """The number in the stream. `Last-Event-ID` resumes after it."""
    kind: EventKind
    at: float
    leaf: LeafScore | None = None
    policy_version: str | None = None
    outcome: Outcome | None = None
    reason: str | None = None
    """Why a request to park was refused."""


class GroupRequest(Model):
    """`size` rollouts of one request, at one policy version."""

    id: Name | None = None
    """Default: the server makes one."""
    size: int = Field(ge=1, le=4096)
    rollout: RolloutRequest

    @model_validator(mode="after")
    def _sets_the_group(self) -> Self:
        if self.rollout.group is not None:
            raise ValueError("leave out 'rollout.group': each member gets its own place")
        return self


class GroupStatus(Model):
    """A group of rollouts. Rewards of lost members are not known, and are not 0."""

    id: str
    size: int
    policy: str | None = None
    policy_version: str | None = None
    is_ended: bool
    members: Sequence[RolloutStatus]
    lost: Sequence[str] = ()
    """The ids of the members that ended without a score."""
    group_reward: str | None = None
    """The name of the service's group reward, when the reward has scored the group. A group with
    such a reward has ended when it is scored. `reward` has replaced the rewards of the members."""
    not_compared: Sequence[str] = ()
    """The rollouts, or `ROLLOUT:LEAF`, that the group reward did not see."""


class PolicyUpdate(Model):
    """New weights of a policy."""

    version: Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,200}$")]
    endpoint: ModelEndpoint
    in_flight: InFlight = "finish"
    max_staleness: int | None = Field(default=None, ge=0)
    """The number of updates after which work is dropped, in the queue and while it runs. 0 drops
    everything that has not the newest version."""


class PolicyStatus(Model):
    """A registered policy."""

    name: str
    version: str
    updates: int
    """The number of updates so far."""
    endpoint: ModelEndpoint
    """Without its key. `upstream` is the protocol that was found, if the update said `auto`."""
    tokens: TokenLevel | None = None
    """The level of the endpoint; `None` if it was not probed, or gave no answer."""
    probe_error: str | None = None
    """Why the level is not known, after a probe without an answer."""
    max_staleness: int | None = None
    in_flight: Mapping[str, int] = {}
    """The running rollouts by the version that their next model call goes to."""
    dropped: Mapping[str, int] = {}
    """The dropped rollouts by the version that they had."""
    swapped: int = 0
    """The running rollouts that the last update sent to the new weights."""
    parked: Sequence[str] = ()
    """The rollouts that the last update parked."""


class ResumeRequest(Model):
    """How a parked rollout continues."""

    policy_version: str | None = None
    """The expected version of the policy; another one is an error (default: the newest one)."""


class Capacity(Model):
    """What the service does, and what it could do."""

    slots: int
    slots_used: int = 0
    """Rollouts that run, and attempts of jobs. Each has a slot."""
    running: int
    queued: int
    queue_limit: int
    parked: int
    unacknowledged: int
    """Results that wait for a client."""
    in_flight: Mapping[str, Mapping[str, int]] = {}
    """The running rollouts by policy and version."""
    tokens: Mapping[str, TokenLevel | None] = {}
    """The level of each policy's endpoint, as in `PolicyStatus`."""
    sandboxes: int
    """Open sandboxes."""
    tokens_per_sec: float | None = None
    """Sampled tokens over the last minute; `None` if no call reported tokens."""
    ended: int = 0
    """Rollouts that ended since the start of the server."""
    losses: Mapping[str, int] = {}
    """Of these, those without a score, by the boundary of their error."""


class ServedTask(Model):
    """A task that rollouts can name."""

    id: str
    digest: str | None = None
    format: str
    refusal: str | None = None
    """Why it cannot run; `None` if it can."""


class TaskPage(Model):
    """Some tasks of the server, by id."""

    tasks: Sequence[ServedTask]
    next: str | None = None
    """The value of `after` for the next page; `None` on the last one."""


class Problem(Model):
    """The body of an error response."""

    type: str
    """The name of the error, such as `UsageError`."""
    message: str
    hint: str | None = None
    where: str | None = None
    """The key of the request, such as `rollout.branch.kind`."""
