"""The rollout tree: nodes are states, edges are steps."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from ._model import Model, RareModel
from .door import DoorPath
from .environment import EnvState, StateRef
from .errors import Culprit
from .step import Step
from .verdict import VerifyResult

Status = Literal["running", "completed", "ungraded", "failed", "cancelled"]
"""`ungraded`: the agent ran to its end, and no leaf has a verdict."""

Fidelity = Literal["live", "state", "replay"]
"""How much of the parent's world a fork keeps: all of it, files and state, or a repetition."""


Weighting = Literal["uniform", "answers"]
"""`answers`: the children of a fork by answers count by the probability of their answer."""


class Value(Model):
    """V(s): the mean return of a node's scored leaves. Unscored leaves do not count."""

    mean: float
    n: int = Field(gt=0)
    """The number of returns with a weight above 0."""
    variance: float = Field(ge=0)
    """The sample variance, with n - 1; 0 if n is 1."""
    stderr: float = Field(ge=0)
    weighting: Weighting = "uniform"
    """Whether a fork at or below the node weights its children by their answers."""


class Credit(Model):
    """The credit of one edge, from scored leaves only.

    `intra` and `inter` are Tree-GRPO's two advantages of the node's mean return: within its own
    tree, and against the other trees of the same prompt. A single tree does not have `inter`.
    Leaves count by the probability of the answers on their path, as in `Value`.
    """

    intra: float | None = None
    inter: float | None = None
    step: float | None = None
    """V(node) - V(parent)."""
    process: float | None = None
    """The `step` of the last child of a fork on the way from the root to this node, where the
    children of the fork have different values. `None` above all such forks."""
    weighting: Weighting = "uniform"


class NodeError(Model):
    """Why a branch of the tree ended early: one boundary, one cause."""

    boundary: str
    type: str
    message: str
    hint: str | None = None
    retryable: bool = False
    retry_after: float | None = None
    """Seconds until the next try, if the provider says so."""
    stops_job: bool = False
    """Whether every other rollout of the job would fail in the same way."""
    caused_by: Culprit = "unknown"


class BranchRecord(Model):
    """How a node was forked."""

    policy: str
    fidelity: Fidelity
    reason: str
    """Why no better fidelity was used, or how this one was reached."""
    children: int = Field(ge=0)
    """The number of requested children. Fewer nodes may exist."""
    answers: Mapping[str, float] | None = None
    """For a fork with one child for each answer: the probability that the task's user gives the
    answer, by the child's label. They add up to less than 1 if the user may say something else.
    `None` if the user was not asked."""
    call: int | None = None
    """The number of the model call at which the node was forked, from 1 along the path from the
    root. Only answered calls of the agent's work count. `None` at any other fork. Each child gets
    its own answer to this call."""


@dataclass(slots=True, eq=False)
class RolloutNode:
    """A state of the rollout, with its place in the tree. Equal only to itself.

    `path`, `subtree` and `leaves` are views, computed from the tree.
    """

    id: str
    parent: "RolloutNode | None" = None
    step: Step | None = None
    """The edge that led here; `None` at the root."""
    children: "list[RolloutNode]" = field(default_factory=list["RolloutNode"])
    label: str | None = None
    """The difference from the siblings, such as the chosen option."""
    checkpoint_ref: str | None = None
    branch: BranchRecord | None = None
    results: dict[str, VerifyResult] = field(default_factory=dict[str, VerifyResult])
    """By the name of the Reward."""
    value: Value | None = None
    credit: Credit | None = None
    error: NodeError | None = None
    state_ref: StateRef | None = None
    """The recorded state. `benchflow_store.StoredRollout.state` reads it."""
    env_state: EnvState | None = None
    """The state itself: while the rollout runs, and from a log of version 0.8 and before."""
    took_sec: dict[str, float] = field(default_factory=dict[str, float])
    """The seconds of a fork. At a captured node: `quiesce`, `checkpoint`, `frozen` and `dump`. At a
    child: `waited` (for a slot), `restore`, `ready` (environment, invariants), `connect`,
    `first_step`, and `until_running`, from the end of the forked step until the child ran."""

    @property
    def path(self) -> list["RolloutNode"]:
        """The nodes from the root to this one, both included."""
        nodes: list[RolloutNode] = []
        node: RolloutNode | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes

    @property
    def steps(self) -> list[Step]:
        """The edges from the root to this node."""
        return [node.step for node in self.path if node.step is not None]

    @property
    def subtree(self) -> Iterator["RolloutNode"]:
        """This node and all below it, parents first, siblings in order."""
        stack: list[RolloutNode] = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children))

    @property
    def leaves(self) -> list["RolloutNode"]:
        """The nodes without children at or below this one."""
        return [node for node in self.subtree if not node.children]

    @property
    def reward(self) -> float | None:
        """The return of a leaf: the result named `reward`, or `None` when unscored.

        A tampered verdict does not count, but stays in `results`.
        """
        result = self.results.get("reward")
        return None if result is None else result.counted().reward


@dataclass(slots=True, eq=False)
class RolloutTree:
    """One rollout. A linear rollout is a tree with one leaf. Equal only to itself."""

    rollout_id: str
    task_id: str
    root: RolloutNode
    index: Mapping[str, RolloutNode]
    """Every node by id."""
    status: Status = "running"
    error: NodeError | None = None
    """A failure of the whole rollout, attributed to one boundary."""
    meta: Mapping[str, object] = field(default_factory=dict[str, object])
    images: Mapping[str, str] = field(default_factory=dict[str, str])
    """The images of the first sandbox and its services, as `HasImageDigests.image_digests`."""
    doors: Mapping[str, DoorPath] = field(default_factory=dict[str, DoorPath])
    """How the doors of the first sandbox lead out, as `HasDoors.door_paths`."""

    @property
    def nodes(self) -> Iterator[RolloutNode]:
        """All nodes, parents first."""
        return self.root.subtree

    @property
    def leaves(self) -> list[RolloutNode]:
        """The end of every trajectory."""
        return self.root.leaves


class Trajectory(RareModel):
    """One root-to-leaf path: a pure view of the tree."""

    rollout_id: str
    task_id: str
    leaf: str
    branch: tuple[str, ...] = ()
    """The labels of the branches taken, from the root."""
    steps: tuple[Step, ...]
    reward: float | None
