"""Fold events into a tree."""

from collections.abc import Callable, Iterable
from typing import Any, Final, get_args

from benchflow_contracts import (
    Branched,
    Checkpointed,
    EnvironmentCalled,
    Event,
    NodeCredited,
    NodeFailed,
    NodeScored,
    NodeValued,
    PhaseEntered,
    QuestionAnswered,
    QuestionOpened,
    RolloutFinished,
    RolloutNode,
    RolloutStarted,
    RolloutTree,
    SandboxMade,
    StateCaptured,
    StateUnavailable,
    StepFinished,
    StepStarted,
    StoreError,
    ToolCallEnded,
    ToolCallStarted,
    TurnStarted,
    UsageReported,
    WorldClosed,
)

from benchflow_kernel.states import state_ref

_Progress = (
    StateUnavailable
    | TurnStarted
    | StepStarted
    | ToolCallStarted
    | ToolCallEnded
    | QuestionOpened
    | QuestionAnswered
    | EnvironmentCalled
    | UsageReported
)

_INTERVALS: Final = (
    ("restore", "start", "provision"),
    ("ready", "provision", "connect"),
    ("connect", "connect", "execute"),
)
"""Each interval, with the phase that begins it and the phase that ends it."""


class ForkTimes:
    """Collects the times at which the worlds of a rollout entered their phases."""

    def __init__(self) -> None:
        self._entered: dict[str, dict[str, float]] = {}
        self._branched: dict[str, float] = {}
        self._stepped: dict[str, float] = {}

    def record_phase(self, event: PhaseEntered) -> None:
        """Record the first time of a phase of a world."""
        self._entered.setdefault(event.node, {}).setdefault(event.phase, event.ts)

    def record_fork(self, event: Branched) -> None:
        """Record the last time at which a node was forked."""
        self._branched[event.node] = event.ts

    def record_step(self, event: StepFinished) -> dict[str, float]:
        """Return the seconds of the world whose first step is this one, else nothing."""
        self._stepped[event.node] = event.ts
        phases = self._entered.get(event.node)
        if phases is None or "execute" not in phases:
            return {}
        spans = {
            name: phases[until] - phases[since]
            for name, since, until in _INTERVALS
            if since in phases and until in phases
        }
        if event.parent in self._branched and "setup" in phases:
            spans["waited"] = phases["setup"] - self._branched[event.parent]
        spans["first_step"] = event.ts - phases["execute"]
        if event.parent in self._stepped:
            spans["until_running"] = phases["execute"] - self._stepped[event.parent]
        return {name: round(seconds, 6) for name, seconds in spans.items()}


class TreeFold:
    """The fold as an accumulator, for a running rollout.

    Call `apply` in the order of the log. `tree` always equals `fold` of the events so far.
    """

    def __init__(self) -> None:
        self._tree: RolloutTree | None = None
        self._index: dict[str, RolloutNode] = {}
        self.times = ForkTimes()

    @property
    def tree(self) -> RolloutTree:
        """The tree so far.

        Raises:
            StoreError: `rollout_started` was not applied yet.
        """
        if self._tree is None:
            raise StoreError("the event log does not begin with 'rollout_started'")
        return self._tree

    def apply(self, event: Event) -> None:
        """Apply one event.

        Raises:
            StoreError: The event names an unknown node, or creates a node twice.
        """
        _APPLY[type(event)](self, event)

    def node(self, node_id: str, event: Event) -> RolloutNode:
        """Return a node that an event refers to."""
        try:
            return self._index[node_id]
        except KeyError:
            raise StoreError(
                f"event {event.seq} ({event.kind}) names node {node_id!r}, which does not exist"
            ) from None

    def add(self, node: RolloutNode, event: Event) -> None:
        """Add a new node below its parent."""
        if node.id in self._index:
            raise StoreError(f"event {event.seq} ({event.kind}) makes node {node.id!r} twice")
        self._index[node.id] = node
        if node.parent is not None:
            node.parent.children.append(node)

    def start(self, event: RolloutStarted) -> None:
        """Create the root."""
        if self._tree is not None:
            raise StoreError(f"event {event.seq} starts the rollout twice")
        root = RolloutNode(id=event.root)
        self._tree = RolloutTree(
            rollout_id=event.rollout_id,
            task_id=event.task_id,
            root=root,
            index=self._index,
            meta=dict(event.meta),
        )
        self.add(root, event)


def fold(events: Iterable[Event]) -> RolloutTree:
    """Return the tree of `events`. Pure: the same events give the same tree.

    An incomplete log gives a tree with the status `running`.

    Raises:
        StoreError: The events contradict each other.
    """
    state = TreeFold()
    for event in events:
        state.apply(event)
    return state.tree


def _apply_step(state: TreeFold, event: StepFinished) -> None:
    parent = state.node(event.parent, event)
    took = state.times.record_step(event)
    node = RolloutNode(event.node, parent, event.step, label=event.label, took_sec=took)
    state.add(node, event)


def _apply_failure(state: TreeFold, event: NodeFailed) -> None:
    if event.parent is not None:
        parent = state.node(event.parent, event)
        state.add(RolloutNode(id=event.node, parent=parent, label=event.label), event)
    state.node(event.node, event).error = event.error


def _apply_checkpoint(state: TreeFold, event: Checkpointed) -> None:
    node = state.node(event.node, event)
    node.checkpoint_ref = event.ref
    node.took_sec |= event.took_sec


def _apply_fork(state: TreeFold, event: Branched) -> None:
    state.node(event.node, event).branch = event.record
    state.times.record_fork(event)


def _apply_state(state: TreeFold, event: StateCaptured) -> None:
    node = state.node(event.node, event)
    node.env_state, node.state_ref = event.state, event.ref
    if event.state is not None:
        node.state_ref = state_ref(event.state.__pydantic_serializer__.to_json(event.state))


def _apply_score(state: TreeFold, event: NodeScored) -> None:
    state.node(event.node, event).results[event.name] = event.result


def _apply_value(state: TreeFold, event: NodeValued) -> None:
    state.node(event.node, event).value = event.value


def _apply_credit(state: TreeFold, event: NodeCredited) -> None:
    state.node(event.node, event).credit = event.credit


def _apply_end(state: TreeFold, event: RolloutFinished) -> None:
    state.tree.status = event.status
    state.tree.error = event.error


def _apply_phase(state: TreeFold, event: PhaseEntered) -> None:
    """Keep only the phase times of a fork's children."""
    state.times.record_phase(event)


def _check_node(state: TreeFold, event: _Progress) -> None:
    """Only check the node: the event is for live views, and the finished step has its content."""
    state.node(event.node, event)


def _ignore_close(state: TreeFold, event: WorldClosed) -> None:
    """Ignore worlds: they are for live views and timing, not for the tree."""


def _apply_sandbox(state: TreeFold, event: SandboxMade) -> None:
    """Keep the images of the first world. Later worlds are in the log."""
    if not state.tree.images:
        state.tree.images = dict(event.images)
    if not state.tree.doors:
        state.tree.doors = dict(event.doors)


_APPLY: dict[type, Callable[[TreeFold, Any], None]] = {
    RolloutStarted: TreeFold.start,
    PhaseEntered: _apply_phase,
    WorldClosed: _ignore_close,
    SandboxMade: _apply_sandbox,
    StepFinished: _apply_step,
    Checkpointed: _apply_checkpoint,
    Branched: _apply_fork,
    StateCaptured: _apply_state,
    NodeScored: _apply_score,
    NodeValued: _apply_value,
    NodeCredited: _apply_credit,
    NodeFailed: _apply_failure,
    RolloutFinished: _apply_end,
    **dict.fromkeys(get_args(_Progress), _check_node),
}
