"""The events of a sample: the path to a leaf, and the tree around it.

Inspect's timeline shows a fork so: an anchor event, then one span of type `branch` for each other
child, whose first event is a branch event that names the anchor. The branch has a span of type
`agent`, because the timeline would dissolve a branch in any other span.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from benchflow_contracts import FinishedRollout, ModelCall, RolloutNode, Step, VerifyResult

from .messages import conversation, output_of, stop_reason, usage_of
from .values import Json, id_of, json_of, text_of, time_of

_Said = tuple[list[Json], int | None]

NO_MODEL = "none/none"
"""The model of a rollout without one. Inspect's own name for it."""


class EventWriter:
    """Writes the events of one sample in order. Ids follow from the rollout and the leaf."""

    def __init__(self, rollout: FinishedRollout, leaf: RolloutNode) -> None:
        self._rollout = rollout
        self._leaf = leaf
        self._scope = f"{rollout.tree.rollout_id}/{leaf.id}"
        self._spans: list[str] = []
        self._started = _first_time(rollout)
        self._said: dict[str, _Said] = {}
        """The conversation of each node, and the place of its answer."""
        self._pool: dict[str, int] = {}
        self.events: list[Json] = []
        self.messages: list[Json] = []
        """The inputs of all model events. An event refers to them, as in Inspect's own logs."""

    def write(self, sample: Mapping[str, Any], *, whole_tree: bool) -> list[Json]:
        """Return the events. With `whole_tree`, each fork has its other children as branches."""
        at = self._started
        self._begin("init", "init", at)
        self._add(at, event="sample_init", sample=sample, state={})
        self._end(at)
        self._begin("solvers", "solvers", at)
        agent = text_of(self._rollout.agent)
        self._begin(agent, "solver", at)
        self._begin(agent, "agent", at)
        self._talk(self._leaf.path)
        for node, following in zip(self._leaf.path, [*self._leaf.path[1:], None], strict=True):
            self._node(node)
            if len(node.children) > 1:
                self._fork(node, node.children if whole_tree else (), following)
        for _ in range(3):
            self._end(self._rollout.finished_at)
        self._begin("scorers", "scorers", self._rollout.finished_at)
        self._scores(self._leaf, intermediate=False)
        self._end(self._rollout.finished_at)
        return self.events

    def _fork(
        self, node: RolloutNode, children: Sequence[RolloutNode], inline: RolloutNode | None
    ) -> None:
        self._add(_time(node, self._started), event="anchor", anchor_id=node.id, source="benchflow")
        for child in children:
            if child is not inline:
                self._branch(node, child)

    def _branch(self, parent: RolloutNode, child: RolloutNode) -> None:
        at = child.step.started_at if child.step is not None else self._started
        self._begin(text_of(child.label or child.id), "branch", at)
        self._add(at, event="branch", from_anchor=parent.id)
        self._begin(text_of(self._rollout.agent), "agent", at)
        tip = child
        while tip.children:
            tip = tip.children[0]
        self._talk(tip.path)
        node: RolloutNode | None = child
        while node is not None:
            self._node(node)
            following = node.children[0] if node.children else None
            if len(node.children) > 1:
                self._fork(node, node.children, following)
            if following is None:
                self._scores(node, intermediate=True)
            at, node = _time(node, self._started), following
        self._end(at)
        self._end(at)

    def _node(self, node: RolloutNode) -> None:
        if node.step is not None:
            self._step(node, node.step)
        facts = {
            "node": node.id,
            "label": node.label,
            "value": None if node.value is None else node.value.model_dump(),
            "credit": None if node.credit is None else node.credit.model_dump(),
            "branch": None if node.branch is None else node.branch.model_dump(),
        }
        self._add(_time(node, self._started), event="info", source="benchflow", data=json_of(facts))
        if node.error is not None:
            error = error_of(f"{node.error.type}: {node.error.message}")
            self._add(_time(node, self._started), event="error", error=error)

    def _step(self, node: RolloutNode, step: Step) -> None:
        known = [self._rollout.calls[i] for i in step.model_calls if i in self._rollout.calls]
        # A step is one answer, so the last recorded call of the agent's work gave it.
        main = [call for call in known if call.purpose == "main"]
        for call in known:
            if not main or call is not main[-1]:
                self._call(call, [], None)
        messages, place = self._said[node.id]
        if place is not None:
            self._call(main[-1] if main else None, messages[:place], messages[place])
        elif main:
            self._call(main[-1], messages, None)
        self._tools(step)

    def _talk(self, path: Sequence[RolloutNode]) -> None:
        """Make the conversation of a path once, for all its nodes."""
        steps = [node.step for node in path if node.step is not None]
        messages = conversation(steps, self._rollout.instruction, self._scope)
        places = iter([i for i, each in enumerate(messages) if each["role"] == "assistant"])
        for node in path:
            step = node.step
            if step is not None:
                answers = step.message or step.reasoning or step.tool_calls or step.ask is not None
                self._said[node.id] = messages, next(places, None) if answers else None

    def _refer(self, messages: Sequence[Json]) -> list[list[int]]:
        """Add messages to the pool; return their places as ranges, without the end."""
        ranges: list[list[int]] = []
        for message in messages:
            at = self._pool.setdefault(message["id"], len(self._pool))
            if at == len(self.messages):
                self.messages.append(message)
            if ranges and ranges[-1][1] == at:
                ranges[-1][1] += 1
            else:
                ranges.append([at, at + 1])
        return ranges

    def _call(self, call: ModelCall | None, before: Sequence[Json], answer: Json | None) -> None:
        at = self._started if call is None else call.started_at
        model = model_of(self._rollout, call)
        facts = {"recorded": call is not None, "id": None if call is None else call.id}
        output: Json = {"model": model, "choices": [], "completion": ""}
        if answer is not None:
            output = output_of(answer, model, "unknown" if call is None else stop_reason(call))
        event: Json = {"event": "model", "model": model, "input": [], "tools": []}
        event["input_refs"] = self._refer(before)
        event |= {"tool_choice": "auto", "config": {}, "output": output}
        if call is not None:
            output["usage"] = usage_of(call.usage, call.cost_usd)
            output["time"] = max(0.0, call.finished_at - call.started_at)
            facts |= {"policy_version": call.policy_version, "purpose": call.purpose}
            event["completed"] = time_of(call.finished_at)
            event["working_time"] = output["time"]
            event["call"] = {
                "request": json_of(call.request),
                "response": json_of(call.response),
                "time": output["time"],
            }
            if call.error is not None:
                event["error"] = text_of(call.error)
        self._add(at, metadata={"benchflow": json_of(facts)}, **event)

    def _tools(self, step: Step) -> None:
        results = {each.tool_call_id: each for each in step.observations}
        for call in step.tool_calls:
            arguments: Any = json_of(call.raw_input)
            if not isinstance(arguments, dict):
                arguments = {"title": call.title} if arguments is None else {"input": arguments}
            result = results.get(call.id)
            failed = result is not None and result.status == "failed"
            text = "" if result is None else text_of(result.content)
            event: Json = {
                "event": "tool",
                "id": text_of(call.id),
                "function": text_of(call.name or call.kind),
                "arguments": arguments,
                "result": text,
                "completed": time_of(step.finished_at),
            }
            if failed:
                event |= {"failed": True, "error": {"type": "unknown", "message": text}}
            self._add(step.started_at, **event)

    def _scores(self, node: RolloutNode, *, intermediate: bool) -> None:
        for name, score in scores_of(node).items():
            event: Json = {"event": "score", "score": score, "scorer": name}
            self._add(self._rollout.finished_at, intermediate=intermediate, **event)

    def _begin(self, name: str, kind: str, at: float) -> None:
        span = id_of(self._scope, "span", len(self.events))
        parent = {"parent_id": self._spans[-1]} if self._spans else {}
        self._spans.append(span)
        self._add(at, event="span_begin", id=span, type=kind, name=name, **parent)

    def _end(self, at: float) -> None:
        self._add(at, event="span_end", id=self._spans[-1])
        self._spans.pop()

    def _add(self, at: float, **fields: object) -> None:
        self.events.append(
            {
                "uuid": id_of(self._scope, len(self.events)),
                "span_id": self._spans[-1],
                "timestamp": time_of(at),
                "working_start": max(0.0, at - self._started),
                **fields,
            }
        )


def model_of(rollout: FinishedRollout, call: ModelCall | None) -> str:
    """Return the model of a call, else that of the rollout."""
    return text_of((None if call is None else call.model) or rollout.model or NO_MODEL)


def scores_of(node: RolloutNode) -> dict[str, Json]:
    """Return the scores of a leaf by reward. A verdict without a number is not a score."""
    return {
        text_of(name): _score(result)
        for name, result in node.results.items()
        if result.counted().reward is not None
    }


def _score(result: VerifyResult) -> Json:
    facts = {"items": result.items, "grading": result.grading, "integrity": result.integrity}
    return {
        "value": result.reward,
        "metadata": {"benchflow": json_of(facts)},
        "history": [],
    }


def error_of(message: str) -> Json:
    """Return an error of a sample."""
    text = text_of(message)
    return {"message": text, "traceback": text, "traceback_ansi": text}


def _time(node: RolloutNode, otherwise: float) -> float:
    return otherwise if node.step is None else node.step.finished_at


def _first_time(rollout: FinishedRollout) -> float:
    times = [event.ts for event in rollout.events[:1]]
    times += [node.step.started_at for node in rollout.tree.nodes if node.step is not None]
    return min([*times, rollout.finished_at])
