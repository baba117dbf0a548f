"""The messages of a rollout tree, each once, with the tokens that the model saw and said.

The messages come from the recorded calls of a chat upstream; where the gateway translated a
call, from the upstream's request and answer. A node is one message with the tokens it adds, as
in verifiers 0.4.0, `verifiers.v1.graph.MessageNode`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from benchflow_contracts import ModelCall, RolloutNode, RoutedExperts, Step

from .messages import Message, steps_to_messages

_ROLES = {"system", "user", "assistant", "tool"}


def v1_message(message: Mapping[str, Any]) -> dict[str, Any]:
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

    id: str
    source: str
    parent: "GraphNode | None"
    message: Message
    timestamp: float
    start: int
    """The number of tokens before the message."""
    sampled: bool = False
    """Whether a model generated the message at this node."""
    tokens: tuple[int, ...] = ()
    scaffold: int = 0
    """The number of `tokens` before the sampled tokens."""
    logprobs: tuple[float, ...] = ()
    """One per sampled token. If empty, the trainer must not train on the tokens."""
    experts: RoutedExperts | None = None
    """One row for each of `tokens`."""
    call: ModelCall | None = None
    """The call that sampled the message, if it was recorded."""
    repeated: int = 0
    """If the message begins a sequence after a break: the tokens that are repeated."""
    is_break: bool = False


@dataclass(frozen=True, slots=True)
class _Path:
    """The messages and tokens that the model has seen on the path to a tree node."""

    at: GraphNode | None = None
    seen: tuple[dict[str, Any], ...] = ()
    """The messages in v1 form, because an agent may repeat its own messages with other keys."""
    tokens: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    """The tokens before steps that were reported without calls: the next call is a break."""


@dataclass(slots=True)
class MessageGraph:
    """The messages of a tree, each once. Shared prefixes are shared nodes.

    `by_source` has the messages of each tree node in order. A call whose prompt does not begin
    with the tokens before the call is a break: it starts a new sequence, so a sample never has
    tokens in an order that the model did not see.
    """

    by_source: dict[str, list[GraphNode]] = field(default_factory=dict[str, list[GraphNode]])

    def along(self, path: Sequence[RolloutNode]) -> list[GraphNode]:
        """Return the messages of a path of tree nodes, in order."""
        return [node for tree_node in path for node in self.by_source.get(tree_node.id, ())]


def message_graph(
    root: RolloutNode, calls: Mapping[str, ModelCall], *, instruction: str | None = None
) -> MessageGraph:
    """Return the messages of the tree below `root`.

    If a step has recorded calls of a chat upstream, its messages are those of the calls, with the
    token ids and log-probabilities that the upstream returned. Other steps have the messages of
    `steps_to_messages`, without tokens: use them for SFT, not for RL. An agent may report one
    answer as several steps: then only the first of them has the call, and the others add nothing.
    """
    graph = MessageGraph()
    stack: list[tuple[RolloutNode, _Path]] = [(root, _Path())]
    while stack:
        node, path = stack.pop()
        if node.step is not None:
            path = _extend(graph, node, node.step, path, calls, instruction)
        if node.branch is not None and node.branch.call is not None:
            path = _add_shared_prompt(graph, node, path, calls)
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
    chats = _chats_of(step, calls)
    graph.by_source[node.id] = []
    if not chats:
        if _is_known(step, path, calls):
            return path
        return _add_reported(graph, node, path, instruction)
    for call, chat in chats:
        path = _add_call(graph, node, call, chat, path)
    return path


def _is_known(step: Step, path: _Path, calls: Mapping[str, ModelCall]) -> bool:
    """Return whether a step without a call says only what the recorded answers before it say."""
    own = [calls.get(ident) for ident in step.model_calls]
    if not path.seen or any(call is None or call.purpose == "main" for call in own):
        return False
    said = (str(each["content"]) for each in path.seen if each["role"] == "assistant")
    return _squeeze(step.message) in _squeeze("".join(said))


def _squeeze(text: str) -> str:
    return "".join(text.split())


def _chats_of(step: Step, calls: Mapping[str, ModelCall]) -> "list[tuple[ModelCall, _Chat]]":
    recorded = [calls[ident] for ident in step.model_calls if ident in calls]
    main = [call for call in recorded if call.purpose == "main"]
    return [(call, chat) for call in main if (chat := _read_chat(call)) is not None]


def _add_shared_prompt(
    graph: MessageGraph, fork: RolloutNode, path: _Path, calls: Mapping[str, ModelCall]
) -> _Path:
    """Add the new messages in the prompt of the call at which a node was forked, once.

    The children have them in common. If a child had another prompt, none is added here.
    """
    chats = [_chats_of(child.step, calls) for child in fork.children if child.step is not None]
    first = [each[0] for each in chats if each]
    if not first or len(first) < len(chats):
        return path
    call, chat = first[0]
    prompt, sent = call.prompt_token_ids or (), chat.sent_v1
    is_same = all(
        other.prompt_token_ids == call.prompt_token_ids and each.sent_v1 == sent
        for other, each in first
    )
    if not is_same or not _continues(path, sent, prompt):
        return path
    at = path.at
    fresh = chat.sent[len(path.seen) :]
    added = [at := _add(graph, fork, at, each, timestamp=call.started_at) for each in fresh]
    if not added:
        return path
    _correct_last_row(path, call)
    added[-1].tokens = prompt[len(path.tokens) :]
    added[-1].experts = _experts_of(added[-1], call)
    return _Path(at=at, seen=sent, tokens=prompt)


def _continues(path: _Path, sent: tuple[dict[str, Any], ...], prompt: tuple[int, ...]) -> bool:
    """Return whether a request begins with the messages and tokens of the path.

    After steps without calls, the request repeats their messages. Do not add them twice.
    """
    only_reported = path.at is not None and not path.seen
    is_longer = sent[: len(path.seen)] == path.seen and prompt[: len(path.tokens)] == path.tokens
    return is_longer and not only_reported


@dataclass(frozen=True, slots=True)
class _Chat:
    """The messages of a chat call, as they are and in v1 form."""

    sent: list[Message]
    sent_v1: tuple[dict[str, Any], ...]
    reply: Message
    reply_v1: dict[str, Any]


def _read_chat(call: ModelCall) -> _Chat | None:
    """Return the messages of a call; `None` if they are not those of a chat.

    An agent may send anything, and an upstream may answer it.
    """
    try:
        reply = dict(chat_choice(call)["message"])
        sent = list(chat_request(call).get("messages", ()))
        return _Chat(sent, tuple(map(v1_message, sent)), reply, v1_message(reply))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def chat_request(call: ModelCall) -> Mapping[str, Any]:
    """Return the request of a call in the chat format; empty for another upstream."""
    if call.upstream_api is not None:
        return call.upstream_request if call.upstream_api == "openai-chat" else {}
    return call.request if call.api == "openai-chat" else {}


def chat_choice(call: ModelCall) -> Mapping[str, Any]:
    """Return the first choice of the answer in the chat format; empty without an answer."""
    translated, api = call.upstream_api is not None, call.upstream_api or call.api
    body = call.upstream_response if translated else call.response
    if api != "openai-chat" or body is None:
        return {}
    choices: object = body.get("choices")
    first = cast("list[object]", choices)[0] if isinstance(choices, list) and choices else None
    return cast("Mapping[str, Any]", first) if isinstance(first, dict) else {}


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
    for message in messages[skipped:]:
        at = _add(graph, node, at, message)
        at.sampled = message["role"] == "assistant"
    return _Path(at=at, left=path.tokens or path.left)


def _add_call(
    graph: MessageGraph, node: RolloutNode, call: ModelCall, chat: _Chat, path: _Path
) -> _Path:
    """Add the messages that are new in the call's request, and the reply of the model."""
    sent = chat.sent_v1
    prompt = call.prompt_token_ids or ()
    # Without the prompt, nobody knows what the tokens of the answer were sampled after.
    completion = (call.completion_token_ids or ()) if prompt else ()
    broken: tuple[int, ...] = ()
    if not _continues(path, sent, prompt):
        broken, path = path.tokens or path.left, _Path()
    _correct_last_row(path, call)
    fresh, delta = chat.sent[len(path.seen) :], prompt[len(path.tokens) :]
    at = path.at
    added = [at := _add(graph, node, at, message) for message in fresh]
    if added:
        added[-1].tokens, delta = delta, ()
    at = _add(graph, node, at, chat.reply)
    at.sampled, at.tokens, at.scaffold, at.call = True, (*delta, *completion), len(delta), call
    for message in (*added[-1:], at):
        message.experts = _experts_of(message, call)
    if broken:
        first = added[0] if added else at
        first.is_break, first.repeated = True, min(len(broken), len(prompt))
    if completion and call.logprobs is not None and len(call.logprobs) == len(completion):
        at.logprobs = call.logprobs
    return _Path(at=at, seen=(*sent, chat.reply_v1), tokens=(*prompt, *completion))


def _correct_last_row(path: _Path, call: ModelCall) -> None:
    """Give the last token of the path its own experts: `call` reads the token, its sampler did not.

    Verifiers does the same.
    """
    node = path.at
    while node is not None and not node.tokens:
        node = node.parent
    if node is None or not node.sampled or node.experts is None or call.routed_experts is None:
        return
    node.experts = node.experts.with_last_row_of(call.routed_experts)


def _experts_of(node: GraphNode, call: ModelCall) -> RoutedExperts | None:
    experts = call.routed_experts
    return None if experts is None else experts.rows(node.start, node.start + len(node.tokens))


def _add(
    graph: MessageGraph,
    node: RolloutNode,
    parent: GraphNode | None,
    message: Message,
    *,
    timestamp: float | None = None,
) -> GraphNode:
    """Add a message to the messages of `node`. A node without a step needs the `timestamp`."""
    if timestamp is None:
        assert node.step is not None
        timestamp = node.step.finished_at
    of_node = graph.by_source.setdefault(node.id, [])
    message_node = GraphNode(
        id=f"{node.id}.{len(of_node)}",
        source=node.id,
        parent=parent,
        message=message,
        timestamp=timestamp,
        start=0 if parent is None else parent.start + len(parent.tokens),
    )
    of_node.append(message_node)
    return message_node
