"""Fold the items of a conversation into a trajectory: the same tree that a rollout has."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import cast

from benchflow_contracts import (
    Ask,
    NodeError,
    Observation,
    Question,
    RewardEvent,
    RolloutNode,
    RolloutTree,
    Status,
    Step,
    StopReason,
    ToolCall,
    ToolStatus,
    Usage,
)

from .conversations import Item, conversations
from .facts import (
    AgentRun,
    CalledTool,
    Evaluation,
    Fact,
    Failure,
    MemoryUse,
    Message,
    ModelCall,
    ModelText,
    PermissionWait,
    Tokens,
    ToolRun,
    UserPrompt,
)
from .messages import bounded
from .spans import LogRecord, Span
from .surroundings import Surroundings, has

_ENVIRONMENT = ("deployment.environment.name", "deployment.environment", "env")
_LOOK_BACK = 200
"""Steps that may have called a tool whose run has no id. Older ones are not searched."""
_MOST_TOKENS = 2**40
"""Tokens of one call. A larger number is wrong, and unknown."""
_STOP: Mapping[str, StopReason] = {
    "stop": "end_turn",
    "end_turn": "end_turn",
    "stop_sequence": "end_turn",
    "length": "max_tokens",
    "max_tokens": "max_tokens",
    "content_filter": "refusal",
    "refusal": "refusal",
}


@dataclass(frozen=True, slots=True, eq=False)
class ObservedRollout:
    """One conversation of a production agent."""

    id: str
    """The id that the program gave the conversation, else that of its trace."""
    tree: RolloutTree
    """A tree without forks: one node for each model call. Tools are in the node of their call."""
    service: str
    version: str
    environment: str
    models: tuple[str, ...]
    dialects: tuple[str, ...]
    started_at: float
    """Seconds since the epoch."""
    ended_at: float
    """The end of the last span so far."""
    complete: bool
    """Whether the root span of each trace is there. Roots come last."""
    spans: int
    unknown_spans: int
    """Spans that no dialect knows."""
    evaluations: tuple[RewardEvent, ...] = ()
    """Scores that the program itself gave."""
    questions: int = 0
    """How often the agent waited for a person."""
    has_spans: bool = True
    """Whether there are spans. Log records alone do not report the end of a conversation."""

    @property
    def final_status(self) -> str:
        """The status of a rollout that is over: `unfinished` if its end was not reported."""
        if self.tree.status != "running":
            return self.tree.status
        return "unfinished" if self.has_spans else "completed"

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps in order."""
        return tuple(node.step for node in self.tree.index.values() if node.step is not None)


@dataclass(slots=True)
class _Draft:
    """A step whose tools and results may still come."""

    id: str
    trace: str
    role: str
    start_ns: int
    end_ns: int
    call: ModelCall | None = None
    prompt: str | None = None
    calls: list[CalledTool] = field(default_factory=list[CalledTool])
    runs: dict[str, ToolRun] = field(default_factory=dict[str, ToolRun])
    results: dict[str, str] = field(default_factory=dict[str, str])
    text: str = ""
    """The answer of a model call that was reported apart from the call."""
    unreported: set[str] = field(default_factory=set[str])
    """Calls that are known by their run alone."""
    ask: Ask | None = None
    failure: Failure | None = None


def observed_rollout(key: str, items: Iterable[Item]) -> ObservedRollout:
    """Return the trajectory of one conversation.

    `items` are those of `conversations`. Content that a program does not report is missing in the
    steps: an empty message and no usage, never a usage of 0.
    """
    known = tuple(items)
    fold = _Fold(known)
    fold.run()
    spans = [item for item in known if not item.is_log]
    complete = _is_complete(spans)
    times = [item for item in known if item.start_ns] or list(known)
    return ObservedRollout(
        id=key,
        tree=_tree(key, fold, complete=complete),
        service=_resource(known, "service.name") or "unknown",
        version=_resource(known, "service.version"),
        environment=_resource(known, *_ENVIRONMENT),
        models=tuple(sorted({d.call.model for d in fold.drafts if d.call and d.call.model})),
        dialects=tuple(sorted({item.reading.dialect for item in known if item.reading})),
        started_at=min((item.start_ns for item in times), default=0) / 1e9,
        ended_at=max((item.end_ns for item in times), default=0) / 1e9,
        complete=complete,
        spans=len(known),
        unknown_spans=sum(item.reading is None for item in known),
        evaluations=tuple(fold.evaluations),
        questions=fold.questions,
        has_spans=bool(spans),
    )


def observed_rollouts(
    spans: Iterable[Span], logs: Iterable[LogRecord] = ()
) -> tuple[ObservedRollout, ...]:
    """Return the trajectory of each conversation, sorted by key.

    The result does not depend on the order of the arguments, nor on spans that come twice.
    """
    groups = conversations(spans, logs)
    return tuple(observed_rollout(key, items) for key, items in groups.items())


class _Fold:
    def __init__(self, items: tuple[Item, ...]) -> None:
        self._items = items
        self._surroundings = Surroundings(items)
        self.drafts: list[_Draft] = []
        self.failures: list[tuple[str, Failure]] = []
        self.evaluations: list[RewardEvent] = []
        self.questions = 0
        self._prompts: dict[str, str] = {}
        self._of_span: dict[tuple[str, str], _Draft] = {}
        self._draft_of_call: dict[str, _Draft] = {}
        self._call_of_run: dict[tuple[str, str], tuple[_Draft, str]] = {}

    def run(self) -> None:
        """Apply all facts. Log records repeat what spans of model calls say, and add texts."""
        has_calls = any(has(item, ModelCall) for item in self._items if not item.is_log)
        facts = [
            (item, fact)
            for item in self._items
            if item.reading
            for fact in item.reading.facts
            if not (item.is_log and has_calls) or isinstance(fact, ModelText | ToolRun)
        ]
        for item, fact in facts:
            self._apply(item, fact)
        for item, fact in facts:
            if isinstance(fact, Evaluation):
                self._evaluation(item, fact)

    def _apply(self, item: Item, fact: Fact) -> None:
        match fact:
            case AgentRun():
                self._agent_run(item, fact)
            case UserPrompt():
                self._prompts[fact.role or self._surroundings.role(item)] = bounded(fact.text)
            case ModelCall():
                self._model_call(item, fact)
            case ModelText():
                self._model_text(item, fact)
            case ToolRun():
                self._tool_run(item, fact)
            case MemoryUse():
                self._memory_use(item, fact)
            case PermissionWait():
                self._question(item, fact)
            case Evaluation():
                """It is applied when all steps are there."""

    def _agent_run(self, item: Item, fact: AgentRun) -> None:
        if fact.prompt:
            self._prompts[self._surroundings.role(item)] = bounded(fact.prompt)
        if fact.failure is not None:
            self.failures.append((fact.name, fact.failure))

    def _model_call(self, item: Item, fact: ModelCall) -> None:
        if self._surroundings.of(item).call is not None:
            # Two libraries report one call. The outer span is the call.
            return
        for message in fact.input:
            for result in message.results:
                self._result(result.id, result.content)
        role = fact.role or self._surroundings.role(item)
        said = self._prompts.pop(role, None)
        draft = self._draft(item, role)
        draft.call = fact
        draft.prompt = _prompt(fact.input) or said
        draft.failure = fact.failure
        if fact.output is not None:
            for number, call in enumerate(fact.output.calls):
                named = call if call.id else _with_id(call, f"{item.id}-{number}")
                self._add_call(draft, named)

    def _model_text(self, item: Item, fact: ModelText) -> None:
        draft = self._latest(fact.role or self._surroundings.role(item))
        if draft is not None and draft.call is not None and draft.call.output is None:
            draft.text = draft.text or bounded(fact.text)

    def _tool_run(self, item: Item, fact: ToolRun) -> None:
        outer = self._surroundings.of(item).tool
        if outer is not None:
            # Without its parent's step, a clock was wrong: the parent comes later, and counts.
            if (known := self._call_of_run.get((outer.trace, outer.id))) is not None:
                _add_run(*known, fact)
            return
        role = self._surroundings.role(item)
        draft = self._caller(fact, role)
        if draft is None:
            draft = self._silent_call(role) or self._draft(item, role)
            identifier = fact.id or item.id
            self._add_call(draft, CalledTool(identifier, fact.name, fact.arguments))
            draft.unreported.add(identifier)
        call = next(c for c in draft.calls if _is_call_of(c, fact, draft))
        _add_run(draft, call.id, fact)
        draft.end_ns = max(draft.end_ns, item.end_ns)
        self._of_span[item.trace, item.id] = draft
        self._call_of_run[item.trace, item.id] = draft, call.id

    def _memory_use(self, item: Item, fact: MemoryUse) -> None:
        draft = self._draft(item, self._surroundings.role(item))
        draft.calls.append(CalledTool(item.id, fact.operation, kind="memory"))
        draft.runs[item.id] = ToolRun(
            item.id, fact.operation, result=fact.content or "", failure=fact.failure
        )

    def _question(self, item: Item, fact: PermissionWait) -> None:
        self.questions += 1
        if self.drafts:
            asked = Question(id="permission", text=bounded(fact.text))
            self.drafts[-1].ask = Ask(
                id=item.id, channel="permission", kind="permission", questions=(asked,)
            )

    def _evaluation(self, item: Item, fact: Evaluation) -> None:
        if fact.score is None or fact.score != fact.score or abs(fact.score) == float("inf"):
            return
        places = (item, *self._surroundings.above(item))
        drafts = (self._of_span.get((place.trace, place.id)) for place in places)
        draft = next((one for one in drafts if one is not None), None)
        notes = {"label": fact.label, "explanation": fact.explanation}
        self.evaluations.append(
            RewardEvent(
                source=fact.name,
                value=fact.score,
                granularity="terminal" if draft is None else "step",
                step_id=None if draft is None else draft.id,
                meta={name: text for name, text in notes.items() if text is not None},
            )
        )

    def _draft(self, item: Item, role: str) -> _Draft:
        draft = _Draft(item.id, item.trace, role, item.start_ns, item.end_ns)
        self.drafts.append(draft)
        self._of_span[item.trace, item.id] = draft
        return draft

    def _latest(self, role: str) -> _Draft | None:
        for draft in islice(reversed(self.drafts), _LOOK_BACK):
            if draft.role == role:
                return draft
        return None

    def _silent_call(self, role: str) -> _Draft | None:
        """Return the latest step of an agent, if it is a model call whose tools are unknown.

        Some programs do not report what a model call answered. A tool that runs after such a call
        was called by it.
        """
        draft = self._latest(role)
        is_silent = draft is not None and draft.call is not None and draft.call.output is None
        return draft if is_silent and draft is not None and draft.failure is None else None

    def _caller(self, fact: ToolRun, role: str) -> _Draft | None:
        """Return the latest step that called the tool and has no run of this call yet."""
        if fact.id:
            return self._draft_of_call.get(fact.id)
        for draft in islice(reversed(self.drafts), _LOOK_BACK):
            if any(_is_call_of(call, fact, draft) for call in draft.calls):
                return draft if draft.role == role else None
        return None

    def _add_call(self, draft: _Draft, call: CalledTool) -> None:
        draft.calls.append(call)
        self._draft_of_call[call.id] = draft

    def _result(self, call_id: str, content: str) -> None:
        if (draft := self._draft_of_call.get(call_id)) is not None:
            draft.results.setdefault(call_id, content)


def _is_call_of(call: CalledTool, fact: ToolRun, draft: _Draft) -> bool:
    if fact.id:
        return call.id == fact.id
    return call.name == fact.name and call.id not in draft.runs


def _add_run(draft: _Draft, call_id: str, fact: ToolRun) -> None:
    """Note a run of a call. A second one adds what the first does not say."""
    known = draft.runs.get(call_id)
    if known is None:
        draft.runs[call_id] = fact
        return
    draft.runs[call_id] = known._replace(
        result=fact.result if known.result is None else known.result,
        failure=known.failure or fact.failure,
    )
    if call_id in draft.unreported:
        draft.calls = [
            call._replace(arguments=_union(call.arguments, fact.arguments))
            if call.id == call_id
            else call
            for call in draft.calls
        ]


def _union(first: object, second: object) -> object:
    """Return the arguments of two reports of one call: the first one goes before the second."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        known = cast("Mapping[str, object]", first)
        return {**cast("Mapping[str, object]", second), **known}
    return second if first is None else first  # pyright: ignore[reportUnknownVariableType]


def _with_id(call: CalledTool, identifier: str) -> CalledTool:
    return CalledTool(identifier, call.name, call.arguments)


def _prompt(messages: tuple[Message, ...]) -> str | None:
    """Return what the user wrote after the last answer of the model, or None."""
    texts: list[str] = []
    for message in reversed(messages):
        if message.role == "assistant":
            break
        if message.role == "user" and message.text:
            texts.append(message.text)
    return "\n".join(reversed(texts)) or None


def _tree(key: str, fold: _Fold, *, complete: bool) -> RolloutTree:
    root = RolloutNode(id="root")
    index = {root.id: root}
    node = root
    for draft in fold.drafts:
        child = RolloutNode(id=_node_id(draft, index), parent=node, step=_step(draft))
        node.children.append(child)
        index[child.id] = child
        node = child
    failures = [*fold.failures, *((d.role, d.failure) for d in fold.drafts[-1:] if d.failure)]
    if failures:
        role, failure = failures[0]
        message = f"{role}: {failure.message}" if failure.message else role
        node.error = NodeError(boundary="agent", type=failure.type, message=message)
    status: Status = "failed" if failures else "completed" if complete else "running"
    return RolloutTree(rollout_id=key, task_id="", root=root, index=index, status=status)


def _node_id(draft: _Draft, index: Mapping[str, RolloutNode]) -> str:
    # Two traces of one conversation may use the same span id.
    return draft.id if draft.id not in index else f"{draft.trace}-{draft.id}"


def _step(draft: _Draft) -> Step:
    call, output = draft.call, draft.call.output if draft.call else None
    return Step(
        id=draft.id,
        role=draft.role,
        prompt=draft.prompt,
        reasoning=output.reasoning if output else "",
        message=output.text if output else draft.text,
        tool_calls=tuple(
            ToolCall(id=c.id, title=c.name, name=c.name, kind=c.kind, raw_input=c.arguments)
            for c in draft.calls
        ),
        observations=tuple(_observations(draft)),
        ask=draft.ask,
        usage=None if call is None else _usage(call.tokens),
        stop_reason=None if call is None else _STOP.get((call.finish or "").lower()),
        meta={} if call is None else {"model": call.model},
        started_at=draft.start_ns / 1e9,
        finished_at=draft.end_ns / 1e9,
    )


def _observations(draft: _Draft) -> Iterator[Observation]:
    for call in draft.calls:
        run = draft.runs.get(call.id)
        content = draft.results.get(call.id) if run is None or run.result is None else run.result
        if run is None and content is None:
            continue
        failure = None if run is None else run.failure
        if not content and failure is not None:
            content = f"{failure.type}: {failure.message}" if failure.message else failure.type
        status: ToolStatus = "completed" if failure is None else "failed"
        yield Observation(tool_call_id=call.id, status=status, content=content or "")


def _usage(tokens: Tokens) -> Usage | None:
    if tokens.input is None or tokens.output is None:
        return None
    if max(tokens.input, tokens.output, tokens.cached or 0) > _MOST_TOKENS:
        return None
    return Usage(
        input_tokens=tokens.input,
        output_tokens=tokens.output,
        cached_tokens=tokens.cached or 0,
    )


def _is_complete(spans: Iterable[Item]) -> bool:
    known = tuple(spans)
    traces = {item.trace for item in known}
    return bool(known) and traces == {item.trace for item in known if item.parent is None}


def _resource(items: Iterable[Item], *names: str) -> str:
    for item in items:
        for name in names:
            if isinstance(value := item.resource.get(name), str) and value:
                return value[:200]
    return ""
