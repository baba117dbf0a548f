"""Build steps from the wire log, as a pure fold."""

import re
from collections.abc import Iterable
from functools import partial

from acp.schema import (
    AgentMessageChunk,
    AgentPlanUpdate,
    AgentThoughtChunk,
    PromptResponse,
    SessionNotification,
    ToolCallProgress,
    ToolCallStart,
    UsageUpdate,
)
from benchflow_contracts import (
    ActivityHandler,
    AgentProtocolError,
    Ask,
    Step,
    StepActivity,
    StopReason,
    ToolActivity,
    Usage,
)
from pydantic import BaseModel, ConfigDict, ValidationError

from .asks import to_answer, to_ask
from .framing import as_object
from .limits import cap_value
from .logs import WireRecord
from .state import IncomingRequest, RequestId
from .step_draft import StepDraft, ToolDraft, block_text

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


class BuilderState(BaseModel):
    """The state of a step builder between two records, without its finished steps."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    first: int
    session: str
    prompt_id: RequestId | None
    cancelled: bool
    draft: StepDraft | None
    tools: dict[str, ToolDraft]
    asks: tuple[tuple[RequestId, Ask], ...]


class StepBuilder:
    """Builds steps from wire records. The same records always give the same steps.

    A step ends when a thought, message or tool call begins after a tool result, when the agent
    asks (the answer opens the next step), when the client says so (a fork at a model call), and
    when its prompt turn ends. Updates outside of a
    turn, such as the replay of a loaded session, are ignored. Step ids count from `first`, so a
    loaded session continues its numbers.
    """

    def __init__(
        self,
        *,
        role: str = "agent",
        skills: tuple[str, ...] = (),
        max_steps: int = 5000,
        first: int = 1,
    ) -> None:
        self.steps: list[Step] = []
        self._first = first
        self._role = role
        self._skills = skills
        self._max_steps = max_steps
        self._session = "session"
        self._prompt_id: RequestId | None = None
        self._cancelled = False
        self._draft: StepDraft | None = None
        self._tools: dict[str, ToolDraft] = {}
        self._asks: dict[RequestId, Ask] = {}
        self._open_calls: set[str] = set()
        """The reported calls without a reported result."""
        self.on_activity: ActivityHandler | None = None
        """Gets the start of each step that the agent begins, and of each tool call and its result.
        At most one start and one result for a call, and only for calls that its step has."""

    def state(self) -> BuilderState:
        """Return the state without `steps`."""
        return BuilderState(
            first=self._first,
            session=self._session,
            prompt_id=self._prompt_id,
            cancelled=self._cancelled,
            draft=self._draft,
            tools=self._tools,
            asks=tuple(self._asks.items()),
        )

    def restore(self, state: BuilderState, steps: Iterable[Step]) -> None:
        """Continue from a state and the steps before it. The builder owns `state` from then on."""
        self.steps = list(steps)
        self._first = state.first
        self._session = state.session
        self._prompt_id = state.prompt_id
        self._cancelled = state.cancelled
        self._tools = state.tools
        self._open_calls = self.running()
        self._asks = dict(state.asks)
        self._draft = state.draft
        if self._draft is not None:
            # A later update of a call must change the step in which the call began.
            calls = self._draft.calls
            self._draft.calls = {key: self._tools.get(key, call) for key, call in calls.items()}

    @property
    def has_action(self) -> bool:
        """Whether the agent thought, wrote or acted in the open step."""
        draft = self._draft
        return draft is not None and (draft.has_begun or draft.has_result)

    def running(self) -> set[str]:
        """Return the ids of the tool calls of this turn that are in progress."""
        return {key for key, tool in self._tools.items() if tool.status == "in_progress"}

    def feed(self, record: WireRecord) -> list[Step]:
        """Process one record; return the steps that it ended, in order.

        Raises:
            AgentProtocolError: The session has too many steps.
        """
        before = len(self.steps)
        if record.dir == "out":
            self._feed_out(record)
        elif record.dir == "in":
            self._feed_in(record)
        elif record.dir == "step" and self._prompt_id is not None:
            self._draft = self._draft or StepDraft(started_at=record.t)
            self._close_draft(record.t)
        elif record.dir == "end" and self._draft is not None:
            self._draft.meta["incomplete"] = True
            self._end_turn(record.t, None, None)
        return self.steps[before:]

    def _feed_out(self, record: WireRecord) -> None:
        message = record.msg
        method = message.get("method")
        if method == "session/prompt":
            self._begin_turn(record)
        elif method == "session/cancel":
            self._cancelled = self._prompt_id is not None
        elif "result" in message or "error" in message:
            self._feed_reply(record)

    def _begin_turn(self, record: WireRecord) -> None:
        params = record.msg["params"]
        self._session = _UNSAFE.sub("-", str(params["sessionId"]))[:64]
        self._prompt_id = record.msg["id"]
        self._cancelled = False
        self._tools = {}
        self._open_calls.clear()
        text = "\n".join(block.get("text", "") for block in params["prompt"])
        self._draft = StepDraft(started_at=record.t, prompt=text)

    def _feed_reply(self, record: WireRecord) -> None:
        ask = self._asks.pop(record.msg["id"], None)
        if ask is None or self._prompt_id is None or "result" not in record.msg:
            return
        answer = to_answer(ask, record.msg["result"])
        if self._draft is not None and self._draft.has_opener:
            self._close_draft(record.t)
        # Updates of a parallel tool during the question belong to the new step.
        self._draft = self._draft or StepDraft(started_at=record.t)
        self._draft.answer = answer

    def _feed_in(self, record: WireRecord) -> None:
        message = record.msg
        if self._prompt_id is None:
            return
        if message.get("method") == "session/update":
            self._feed_update(record)
        elif "method" in message and "id" in message:
            self._feed_request(record)
        elif "method" not in message and _is_same_id(message.get("id"), self._prompt_id):
            self._feed_response(record)

    def _feed_request(self, record: WireRecord) -> None:
        key, method = record.msg["id"], record.msg["method"]
        if type(key) not in (int, str) or key in self._asks or not isinstance(method, str):
            return
        request = IncomingRequest(key, method, as_object(record.msg.get("params")))
        ask = to_ask(request)
        if ask is None:
            return
        self._asks[request.id] = ask
        self._draft = self._draft or StepDraft(started_at=record.t)
        self._close_draft(record.t, ask=ask)

    def _feed_response(self, record: WireRecord) -> None:
        try:
            response = PromptResponse.model_validate(record.msg.get("result"))
        except ValidationError:
            self._end_turn(record.t, "cancelled" if self._cancelled else None, None)
            return
        usage = response.usage
        self._end_turn(
            record.t,
            "cancelled" if self._cancelled else response.stop_reason,
            None
            if usage is None
            else Usage(
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                cached_tokens=usage.cached_read_tokens or 0,
            ),
        )

    def _end_turn(self, at: float, reason: StopReason | None, usage: Usage | None) -> None:
        self._draft = self._draft or StepDraft(started_at=at)
        self._close_draft(at, stop_reason=reason, usage=usage)
        self._prompt_id = None
        self._asks = {}

    def _feed_update(self, record: WireRecord) -> None:
        try:
            update = SessionNotification.model_validate(record.msg.get("params")).update
        except ValidationError:
            self._open_draft(record.t).count("ignored_updates")
            return
        if isinstance(update, AgentMessageChunk | AgentThoughtChunk):
            text = block_text(update.content)
            # Qwen reports token counts in a chunk without text, which does not begin a step.
            draft = self._open_draft(record.t, begins=bool(text))
            part = "message" if isinstance(update, AgentMessageChunk) else "reasoning"
            draft.add_text(part, text, update.message_id)
        elif isinstance(update, ToolCallStart | ToolCallProgress):
            self._feed_tool(record.t, update)
        elif isinstance(update, UsageUpdate):
            self._open_draft(record.t).meta["context"] = {"used": update.used, "size": update.size}
        elif isinstance(update, AgentPlanUpdate):
            plan = [entry.model_dump(mode="json", exclude_none=True) for entry in update.entries]
            self._open_draft(record.t).meta["plan"] = cap_value(plan)

    def _feed_tool(self, at: float, update: ToolCallStart | ToolCallProgress) -> None:
        key = update.tool_call_id[:256]
        new = key not in self._tools
        draft = self._open_draft(at, begins=new)
        tool = self._tools.setdefault(key, ToolDraft(key))
        tool.merge(update)
        draft.add_tool(tool, new=new)
        if self.on_activity is not None:
            self._report_tool(self.on_activity, tool, is_new=new and key in draft.calls)

    def _report_tool(self, on_activity: ActivityHandler, tool: ToolDraft, *, is_new: bool) -> None:
        activity = partial(
            ToolActivity, call=tool.id, title=tool.title or tool.id, name=tool.name, kind=tool.kind
        )
        if is_new:
            self._open_calls.add(tool.id)
            on_activity(activity(status="in_progress"))
        if tool.is_done and tool.id in self._open_calls:
            self._open_calls.remove(tool.id)
            on_activity(activity(status=tool.status))

    def _open_draft(self, at: float, *, begins: bool = False) -> StepDraft:
        """Return the open draft. `begins`: the update starts a new action of the agent."""
        if begins and self._draft is not None and self._draft.has_result:
            self._close_draft(self._draft.finished_at)
        if self._draft is None:
            self._draft = StepDraft(started_at=at)
        self._draft.finished_at = at
        if begins and not self._draft.has_begun:
            self._draft.has_begun = True
            if self.on_activity is not None:
                self.on_activity(StepActivity())
        return self._draft

    def _close_draft(
        self,
        at: float,
        *,
        ask: Ask | None = None,
        stop_reason: StopReason | None = None,
        usage: Usage | None = None,
    ) -> None:
        draft, self._draft = self._draft, None
        if draft is None:
            return
        if len(self.steps) >= self._max_steps:
            raise AgentProtocolError(f"the agent made more than {self._max_steps} steps")
        draft.finished_at = at
        self.steps.append(
            draft.finish(
                f"{self._session}-{self._first + len(self.steps)}",
                self._tools,
                role=self._role,
                skills=self._skills,
                ask=ask,
                stop_reason=stop_reason,
                usage=usage,
            )
        )
        self._release_calls(draft)

    def _release_calls(self, draft: StepDraft) -> None:
        """Drop the data of finished calls, to limit the memory of a long turn."""
        for key in draft.result_ids:
            tool = self._tools.get(key)
            if tool is not None:
                self._tools[key] = ToolDraft(key, title=tool.title, kind=tool.kind)


def _is_same_id(key: object, known: RequestId) -> bool:
    return type(key) is type(known) and key == known


def steps_from_wire(
    records: Iterable[WireRecord], *, role: str = "agent", skills: tuple[str, ...] = ()
) -> list[Step]:
    """Return the steps of a whole wire log."""
    builder = StepBuilder(role=role, skills=skills)
    for record in records:
        builder.feed(record)
    return builder.steps
