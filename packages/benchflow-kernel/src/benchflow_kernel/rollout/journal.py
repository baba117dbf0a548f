"""The log and its fold, always in the same state."""

import itertools
from collections.abc import Mapping

from benchflow_contracts import (
    BenchFlowError,
    Cause,
    DoorPath,
    NodeError,
    NodeFailed,
    Phase,
    PhaseEntered,
    RolloutNode,
    RolloutTree,
    SandboxMade,
    Step,
    StepFinished,
)

from benchflow_kernel.events import EventLog
from benchflow_kernel.events.log import EventT
from benchflow_kernel.faults import node_error
from benchflow_kernel.tree import TreeFold


class Journal:
    """Writes each event and folds it at once; creates the node ids.

    So the tree of a running rollout equals the tree that a reader of the log builds.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._fold = TreeFold()
        self._ids = itertools.count()

    @property
    def tree(self) -> RolloutTree:
        """The tree so far."""
        return self._fold.tree

    def new_id(self) -> str:
        """Return a node id that this rollout has not used."""
        return f"n{next(self._ids)}"

    def node(self, node_id: str) -> RolloutNode:
        """Return a node of the tree."""
        return self.tree.index[node_id]

    @property
    def tokens(self) -> int:
        """Input and output tokens of all steps so far, if they were counted."""
        used = (node.step.usage for node in self.tree.nodes if node.step is not None)
        return sum(u.input_tokens + u.output_tokens for u in used if u is not None)

    def append(self, kind: type[EventT], /, **fields: object) -> EventT:
        """Write one event and fold it.

        Raises:
            StoreError: The event could not be written.
        """
        event = self._log.append(kind, **fields)
        self._fold.apply(event)
        return event

    def phase(self, node: str, phase: Phase) -> None:
        """Record that the world at `node` entered a phase."""
        self.append(PhaseEntered, node=node, phase=phase)

    def made(self, node: str, images: Mapping[str, str], doors: Mapping[str, DoorPath]) -> None:
        """Record the images of the sandbox of `node`, and how its doors lead out."""
        self.append(SandboxMade, node=node, images=images, doors=doors)

    def step(self, parent: str, node: str, step: Step, label: str | None) -> None:
        """Add an edge."""
        self.append(StepFinished, node=node, parent=parent, step=step, label=label)

    def failed(
        self, node: str, error: BenchFlowError | NodeError, cause: Cause | None = None
    ) -> None:
        """Record why the branch at `node` ended early."""
        record = node_error(error, cause) if isinstance(error, BenchFlowError) else error
        self.append(NodeFailed, node=node, error=record)

    def lost(
        self, node: str, parent: str, label: str | None, error: BenchFlowError, cause: Cause
    ) -> None:
        """Add a child that ended before its first step."""
        record = node_error(error, cause)
        self.append(NodeFailed, node=node, parent=parent, label=label, error=record)
