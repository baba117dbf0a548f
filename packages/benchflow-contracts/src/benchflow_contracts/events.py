"""The events of a rollout, in order. The log is append-only.

One event is one JSON line of `events.jsonl`. The tree is a pure fold over the events. `seq` counts
from 0 without gaps. A reader removes and counts an incomplete last line.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from ._model import Model
from .door import DoorPath
from .environment import EnvState
from .step import Step
from .tree import BranchRecord, Credit, NodeError, Value
from .verdict import VerifyResult

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
    """The environment's state at `node`."""

    kind: Literal["state_captured"] = "state_captured"
    node: str
    state: EnvState


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
    | NodeScored
    | NodeValued
    | NodeCredited
    | NodeFailed
    | RolloutFinished,
    Field(discriminator="kind"),
]

event_adapter: TypeAdapter[Event] = TypeAdapter(Event)
"""Reads and writes one event."""
