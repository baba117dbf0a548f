"""The events of a rollout, in order. The log is append-only.

One event is one JSON line of `events.jsonl`. The tree is a pure fold over the events. `seq` counts
from 0 without gaps. A reader removes and counts an incomplete last line.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, TypeAdapter, model_validator

from ._model import Model
from .ask import AskKind
from .door import DoorPath
from .environment import EnvState, StateRef
from .step import Step, ToolStatus, Usage
from .tree import BranchRecord, Credit, NodeError, Value
from .verdict import RewardEvent, VerifyResult

Phase = Literal[
    "setup",
    "start",
    "provision",
    "readiness",
    "connect",
    "execute",
    "verify",
    "teardown",
]


class _Event(Model):
    seq: int = Field(ge=0)
    ts: float
    """Seconds since the epoch."""


class RolloutStarted(_Event):
    """The first event. It creates the root node."""

    kind: Literal["rollout_started"] = "rollout_started"
    rollout_id: str
    task_id: str
    root: str
    meta: Mapping[str, Any] = {}
    """The config, the task digest and the versions, for the record."""


class PhaseEntered(_Event):
    """A world (the root's or a child's) entered a phase of its lifecycle."""

    kind: Literal["phase_entered"] = "phase_entered"
    node: str
    phase: Phase


class WorldClosed(_Event):
    """A world was torn down. It has no phase after this event."""

    kind: Literal["world_closed"] = "world_closed"
    node: str


class SandboxMade(_Event):
    """A world's sandbox was created from its spec, not from a checkpoint."""

    kind: Literal["sandbox_made"] = "sandbox_made"
    node: str
    images: Mapping[str, str]
    """As `HasImageDigests.image_digests`."""
    doors: Mapping[str, DoorPath] = {}
    """As `HasDoors.door_paths`."""


class StepFinished(_Event):
    """An edge: creates `node` below `parent`."""

    kind: Literal["step_finished"] = "step_finished"
    node: str
    parent: str
    step: Step
    label: str | None = None


class Checkpointed(_Event):
    """A checkpoint of `node` exists under `ref`."""

    kind: Literal["checkpointed"] = "checkpointed"
    node: str
    ref: str
    layers: Mapping[str, str]
    """The digest of each layer: sandbox, environment, session."""
    took_sec: Mapping[str, float] = {}
    """Seconds of `quiesce` (until the model calls had ended), of the `checkpoint` after it, and of
    the parts of the checkpoint that the provider measured: `frozen` and `dump`."""


class Branched(_Event):
    """`node` was forked."""

    kind: Literal["branched"] = "branched"
    node: str
    record: BranchRecord


class StateCaptured(_Event):
    """The environment's state at `node`. Either `ref` or `state` is set."""

    kind: Literal["state_captured"] = "state_captured"
    node: str
    ref: StateRef | None = None
    """The file with the state. Nodes with equal states share one file."""
    state: EnvState | None = None
    """The state itself, only in logs of version 0.8 and before."""

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.ref is None) == (self.state is None):
            raise ValueError("a captured state has either `ref` or `state`")
        return self


class StateUnavailable(_Event):
    """The environment's state at `node` was due, and could not be read or written.

    The rollout continues, and its reward does not change.
    """

    kind: Literal["state_unavailable"] = "state_unavailable"
    node: str
    reason: str


class TurnStarted(_Event):
    """An agent got a prompt, or continues a turn after a restored question.

    In this event and the next ones, `world` names a world as in `PhaseEntered.node`, and `node` is
    its last node at that time: the next step of the world is a child of `node`. Texts are cut to
    500 characters.
    """

    kind: Literal["turn_started"] = "turn_started"
    world: str
    node: str
    turn: int = Field(ge=0)
    """The place in the branch's schedule."""
    role: str
    prompt: str | None = None
    """`None` if the turn continues after a restored question."""
    prompt_chars: int = Field(default=0, ge=0)
    """The length of the whole prompt."""
    repeats: bool = False
    """Whether the turn first repeats recorded steps. Only new steps have events."""


class StepStarted(_Event):
    """The agent began to think, to write or to act, in a step that is not finished."""

    kind: Literal["step_started"] = "step_started"
    world: str
    node: str
    role: str


class ToolCallStarted(_Event):
    """The agent reported a tool call that runs."""

    kind: Literal["tool_call_started"] = "tool_call_started"
    world: str
    node: str
    call: str
    """`ToolCall.id`; unique within a turn."""
    title: str
    name: str | None = None
    """The tool's own name, if the agent reports it."""
    tool_kind: str = "other"
    """`ToolCall.kind`."""


class ToolCallEnded(_Event):
    """A tool call has its first result. The step of the call has the whole result."""

    kind: Literal["tool_call_ended"] = "tool_call_ended"
    world: str
    node: str
    call: str
    status: ToolStatus


class QuestionOpened(_Event):
    """The agent asked and waits. `node` is the end of the step with the whole question.

    A fork at the question ends the world, and each child answers for itself.
    """

    kind: Literal["question_opened"] = "question_opened"
    world: str
    node: str
    ask: str
    """`Ask.id`."""
    ask_kind: AskKind
    text: str
    """The first question."""
    options: tuple[str, ...] = ()
    """The labels of the first 20 options."""


class QuestionAnswered(_Event):
    """The agent gets the answer to a question. The next step has the whole answer."""

    kind: Literal["question_answered"] = "question_answered"
    world: str
    node: str
    ask: str
    outcome: Literal["answered", "declined", "cancelled"]
    by: Literal["user", "branch"]
    """`branch`: the world is a child of a fork, and its label is the answer; or a request to fork
    was declined."""


class EnvironmentCalled(_Event):
    """An exchange with a world outside the sandbox; see `WorldCall`.

    The rewards are complete. The step of the tool call has the whole texts.
    """

    kind: Literal["environment_called"] = "environment_called"
    world: str
    node: str
    operation: Literal["open", "call", "finish"]
    tool: str = ""
    arguments: str = ""
    result: str = ""
    failed: bool = False
    rewards: tuple[RewardEvent, ...] = ()
    finished: bool = False
    took_sec: float = Field(default=0, ge=0)


class UsageReported(_Event):
    """A model call ended, or an agent reported the tokens of its turn."""

    kind: Literal["usage_reported"] = "usage_reported"
    world: str
    node: str
    source: Literal["gateway", "agent"]
    """`gateway`: of one recorded model call. `agent`: of a whole turn, without a gateway."""
    call: str | None = None
    """`ModelCall.id`."""
    model: str | None = None
    usage: Usage | None = None
    """`None` if nothing reported tokens: unknown, not 0."""
    cost_usd: float | None = Field(default=None, ge=0)
    """`None` if unknown."""


class NodeScored(_Event):
    """A verdict on `node` by the reward called `name`."""

    kind: Literal["node_scored"] = "node_scored"
    node: str
    name: str
    result: VerifyResult


class NodeValued(_Event):
    """V(s) of `node`, from its scored leaves."""

    kind: Literal["node_valued"] = "node_valued"
    node: str
    value: Value


class NodeCredited(_Event):
    """The advantages of the edge into `node`."""

    kind: Literal["node_credited"] = "node_credited"
    node: str
    credit: Credit


class NodeFailed(_Event):
    """The branch at `node` ended early.

    With `parent`, `node` is a child that was lost before its first step. This event then creates
    the node, without an edge, so that the tree shows the loss.
    """

    kind: Literal["node_failed"] = "node_failed"
    node: str
    error: NodeError
    parent: str | None = None
    label: str | None = None


class RolloutFinished(_Event):
    """The last event."""

    kind: Literal["rollout_finished"] = "rollout_finished"
    status: Literal["completed", "ungraded", "failed", "cancelled"]
    error: NodeError | None = None


Event = Annotated[
    RolloutStarted
    | PhaseEntered
    | WorldClosed
    | SandboxMade
    | StepFinished
    | Checkpointed
    | Branched
    | StateCaptured
    | StateUnavailable
    | TurnStarted
    | StepStarted
    | ToolCallStarted
    | ToolCallEnded
    | QuestionOpened
    | QuestionAnswered
    | EnvironmentCalled
    | UsageReported
    | NodeScored
    | NodeValued
    | NodeCredited
    | NodeFailed
    | RolloutFinished,
    Field(discriminator="kind"),
]

event_adapter: TypeAdapter[Event] = TypeAdapter(Event)
"""Reads and writes one event."""
