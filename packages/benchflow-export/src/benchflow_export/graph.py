"""A rollout tree as the message graph of a Verifiers v1 trace.

Source of the format: verifiers 0.4.0, `verifiers.v1.graph.MessageNode`. A node is one message
with the tokens it adds; the tokens along a path are exactly what the model saw and said.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from benchflow_contracts import ModelCall, RolloutNode, Step

from .messages import Message, steps_to_messages

_ROLES = {"system", "user", "assistant", "tool"}


def v1_message(message: Message) -> dict[str, Any]:
    """Return a `SystemMessage`, `UserMessage`, `AssistantMessage` or `ToolMessage`.

    A role that v1 does not have, such as `developer`, becomes `system`.
    """
    role = message["role"] if message["role"] in _ROLES else "system"
    result: dict[str, Any] = {"role": role, "content": message.get("content") or ""}
    if role == "tool":
        result["tool_call_id"] = str(message.get("tool_call_id", ""))
    if role == "assistant":
        if message.get("reasoning_content"):
            result["reasoning_content"] = message["reasoning_content"]
        if message.get("tool_calls"):
            result["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    return result


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {"id": call["id"], "name": function["name"], "arguments": function["arguments"]}


@dataclass(slots=True)
class GraphNode:
    """One message, and the tree node that it came from."""

    source: str
    parent: "GraphNode | None"
    message: dict[str, Any]
    timestamp: float
    sampled: bool = False
    """Whether a model generated the message at this node."""
    tokens: tuple[int, ...] = ()
    scaffold: int = 0
    """The number of `tokens` before the sampled tokens."""
    logprobs: tuple[float, ...] = ()
    """One per sampled token. If empty, the trainer must not train on the tokens."""

    @property
    def mask(self) -> list[bool]:
        """For each of `tokens`, whether a trainer may train on it."""
        can_train = bool(self.logprobs)
        return [can_train and at >= self.scaffold for at in range(len(self.tokens))]


@dataclass(frozen=True, slots=True)
class _Path:
    """The messages and tokens that the model has seen on the path to a tree node."""

    at: GraphNode | None = None
    seen: tuple[dict[str, Any], ...] = ()
    """The messages in v1 form, because an agent may repeat its own messages with other keys."""
    tokens: tuple[int, ...] = ()


@dataclass(slots=True)
class MessageGraph:
    """The messages of a tree, each once. Shared prefixes are shared nodes.

    `by_source` has the messages of each tree node in order. `retokenised` counts the calls
    whose prompt did not begin with the tokens before the call. Such a call starts a new path,
    so a sample never has tokens in an order that the model did not see.
    """

    by_source: dict[str, list[GraphNode]] = field(default_factory=dict[str, list[GraphNode]])
    calls: list[tuple[GraphNode, ModelCall]] = field(
        default_factory=list[tuple[GraphNode, ModelCall]]
    )
    retokenised: int = 0

    def along(self, path: Sequence[RolloutNode]) -> list[GraphNode]:
        """Return the messages of a path of tree nodes, in order."""
        return [node for tree_node in path for node in self.by_source.get(tree_node.id, ())]


def message_graph(
    root: RolloutNode, calls: Mapping[str, ModelCall], *, instruction: str | None = None
) -> MessageGraph:
    """Return the messages of the tree below `root`.

    If a step has recorded calls of an OpenAI chat endpoint, its messages are those of the
    calls, with the token ids and log-probabilities that the upstream returned. Other steps have
    the messages of `steps_to_messages`, without tokens: use them for SFT, not for RL.
    """
    graph = MessageGraph()
    stack: list[tuple[RolloutNode, _Path]] = [(root, _Path())]
    while stack:
        node, path = stack.pop()
        if node.step is not None:
            path = _extend(graph, node, node.step, path, calls, instruction)
        stack.extend((child, path) for child in reversed(node.children))
    return graph


def _extend(
    graph: MessageGraph,
    node: RolloutNode,
    step: Step,
    path: _Path,
    calls: Mapping[str, ModelCall],
    instruction: str | None,
) -> _Path:
    recorded = [calls[ident] for ident in step.model_calls if ident in calls]
    chat = [call for call in recorded if _is_chat(call)]
    graph.by_source[node.id] = []
    if not chat:
        return _add_reported(graph, node, path, instruction)
    for call in chat:
        path = _add_call(graph, node, call, path)
    return path


def _is_chat(call: ModelCall) -> bool:
    return call.purpose == "main" and call.api == "openai-chat" and _reply(call) is not None


def _reply(call: ModelCall) -> Message | None:
    choices = cast("list[dict[str, Message]]", (call.response or {}).get("choices") or [{}])
    return choices[0].get("message")


def _add_reported(
    graph: MessageGraph, node: RolloutNode, path: _Path, instruction: str | None
) -> _Path:
    """Add the messages of the agent's step. An Answer needs the Ask of the step before."""
    assert node.step is not None
    before = None if node.parent is None else node.parent.step
    lead = [] if before is None else [before]
    messages = steps_to_messages([*lead, node.step], instruction=instruction)
    skipped = len(steps_to_messages(lead, instruction=instruction)) if lead else 0
    at = path.at
    for message in map(v1_message, messages[skipped:]):
        at = _add(graph, node, at, message)
        at.sampled = message["role"] == "assistant"
    return _Path(at=at)


def _add_call(graph: MessageGraph, node: RolloutNode, call: ModelCall, path: _Path) -> _Path:
    """Add the messages that are new in the call's request, and the reply of the model."""
    sent = tuple(map(v1_message, call.request.get("messages", ())))
    prompt, completion = call.prompt_token_ids or (), call.completion_token_ids or ()
    continues = sent[: len(path.seen)] == path.seen and prompt[: len(path.tokens)] == path.tokens
    # After steps without calls, the request repeats their messages. Do not add them twice.
    only_reported = path.at is not None and not path.seen
    if only_reported or not continues:
        graph.retokenised += bool(path.tokens)
        path = _Path()
    fresh, delta = sent[len(path.seen) :], prompt[len(path.tokens) :]
    at = path.at
    for message in fresh:
        at = _add(graph, node, at, message)
    if at is not None and fresh:
        at.tokens, delta = delta, ()
    reply = _reply(call)
    assert reply is not None
    at = _add(graph, node, at, v1_message(reply))
    at.sampled, at.tokens, at.scaffold = True, (*delta, *completion), len(delta)
    if completion and call.logprobs is not None and len(call.logprobs) == len(completion):
        at.logprobs = call.logprobs
    graph.calls.append((at, call))
    return _Path(at=at, seen=(*sent, at.message), tokens=(*prompt, *completion))


def _add(
    graph: MessageGraph, node: RolloutNode, parent: GraphNode | None, message: dict[str, Any]
) -> GraphNode:
    assert node.step is not None
    message_node = GraphNode(node.id, parent, message, node.step.finished_at)
    graph.by_source[node.id].append(message_node)
    return message_node
