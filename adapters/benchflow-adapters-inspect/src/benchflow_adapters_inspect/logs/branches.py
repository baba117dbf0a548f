"""The branches of a sample: the spans of type `branch` of its timeline.

An anchor event names a point of a conversation, and a branch event at the start of a branch names
the anchor at which the branch leaves the conversation around it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from benchflow_contracts import NodeError, Observation, RolloutNode, Step, VerifyResult

from .log_file import Json

StepOf = Callable[[Json], Step]
"""Makes the step of a model event."""
ResultOf = Callable[[str, Json], VerifyResult]
"""Makes the verdict of a scorer."""


class BranchReader:
    """Adds the branches of a sample to the tree of its messages.

    A branch without a known anchor is left out and counted. Nothing in the events is trusted.
    """

    def __init__(
        self,
        nodes: Mapping[str, RolloutNode],
        root: RolloutNode,
        step: StepOf,
        result: ResultOf,
        blank: Callable[[str], Step],
    ) -> None:
        self._main = nodes
        """The nodes of the sample's own conversation, by the id of their message."""
        self._step, self._result, self._blank = step, result, blank
        self._tips: dict[str | None, RolloutNode] = {None: root}
        """The latest node of each branch; `None` is the sample's own conversation."""
        self._branch_of: dict[str, str | None] = {}
        """The branch of each span."""
        self._names: dict[str, str] = {}
        self._anchors: dict[str, RolloutNode] = {}
        self._number = len(nodes)
        self.added: list[RolloutNode] = []
        self.dropped = 0

    def read(self, events: Sequence[Json]) -> None:
        """Read the events in their order."""
        for event in events:
            kind = event.get("event")
            branch = self._branch_of.get(str(event.get("span_id")))
            if kind == "span_begin":
                self._begin(event, branch)
            elif kind == "anchor":
                self._anchors[str(event.get("anchor_id"))] = self._tips.get(
                    branch, self._tips[None]
                )
            elif kind == "branch" and branch is not None:
                self._start(branch, str(event.get("from_anchor")))
            elif kind == "model":
                self._answer(branch, event)
            elif branch in self._tips and branch is not None:
                self._note(self._tips[branch], str(kind), event)
        for node in self.added:
            if node.step is None:
                node.step = self._blank(node.id)
            elif not node.children:
                node.step = node.step.model_copy(update={"stop_reason": "end_turn"})

    def _begin(self, event: Json, around: str | None) -> None:
        span = str(event.get("id"))
        parent = self._branch_of.get(str(event.get("parent_id")), around)
        is_branch = event.get("type") == "branch"
        self._branch_of[span] = span if is_branch else parent
        self._names[span] = str(event.get("name") or "")

    def _start(self, branch: str, anchor: str) -> None:
        parent = self._anchors.get(anchor)
        if parent is None or branch in self._tips:
            self.dropped += 1
            return
        self._tips[branch] = self._add(parent, label=self._names[branch] or None)

    def _answer(self, branch: str | None, event: Json) -> None:
        message = _mapping(_mapping(_first(_mapping(event.get("output")).get("choices"))))
        ident = str(_mapping(message.get("message")).get("id"))
        if branch is None:
            self._tips[None] = self._main.get(ident, self._tips[None])
            return
        tip = self._tips.get(branch)
        if tip is None:
            return
        # The first answer of a branch is that of its first node.
        if tip.step is not None:
            tip = self._add(tip)
        tip.step = self._step(event)
        self._tips[branch] = tip

    def _note(self, tip: RolloutNode, kind: str, event: Json) -> None:
        if kind == "tool" and tip.step is not None:
            error = _mapping(event.get("error"))
            result = event.get("result")
            text = str(error.get("message") or "") if error else result
            found = Observation(
                tool_call_id=str(event.get("id")),
                status="failed" if error else "completed",
                content=text if isinstance(text, str) else str(text),
            )
            update = {"observations": (*tip.step.observations, found)}
            tip.step = tip.step.model_copy(update=update)
        elif kind == "score":
            name = str(event.get("scorer") or "score")
            verdict = self._result(name, _mapping(event.get("score")))
            tip.results["reward" if not tip.results else name] = verdict
        elif kind == "error":
            message = str(_mapping(event.get("error")).get("message") or "the branch failed")
            tip.error = NodeError(boundary="inspect", type="EvalError", message=message)

    def _add(self, parent: RolloutNode, *, label: str | None = None) -> RolloutNode:
        self._number += 1
        child = RolloutNode(id=f"n{self._number}", parent=parent, label=label)
        parent.children.append(child)
        self.added.append(child)
        return child


def _first(value: object) -> object:
    return cast("list[object]", value)[0] if isinstance(value, list) and value else None


def _mapping(value: object) -> Json:
    return cast("Json", value) if isinstance(value, dict) else {}
