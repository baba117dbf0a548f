"""Record what a branch begins: turns, steps, tool calls, questions and model calls."""

from typing import Final, Literal

from benchflow_contracts import (
    Activity,
    Answer,
    Ask,
    EnvironmentCalled,
    ModelCall,
    QuestionAnswered,
    QuestionOpened,
    Step,
    StepActivity,
    StepStarted,
    StoreError,
    ToolActivity,
    ToolCallEnded,
    ToolCallStarted,
    TurnStarted,
    Usage,
    UsageReported,
    WorldCall,
)

from benchflow_kernel.branch import Replay
from benchflow_kernel.events import EventT

from .progress import BranchContext, Interruption, Progress

_MOST_OPTIONS: Final = 20
_MOST_CHARS_OF_OPTION: Final = 100
_TEXTS: Final = ("tool", "arguments", "result")
_DONE: Final = frozenset({"completed", "failed"})


class ActivityRecorder:
    """Records the activity of one branch for live views. The tree does not depend on it.

    Activity that repeats recorded steps is left out. If the record cannot be written, the branch
    ends.
    """

    def __init__(
        self, branch: BranchContext, progress: Progress, replay: Replay, interruption: Interruption
    ) -> None:
        self._branch = branch
        self._progress = progress
        self._replay = replay
        self._interruption = interruption

    def start_turn(self, prompt: str | None) -> None:
        """Record that the current turn starts, with a prompt or with a restored question."""
        text = prompt or ""
        self._append(
            TurnStarted,
            turn=self._progress.turn,
            role=self._progress.current.role.name,
            prompt=None if prompt is None else self._branch.journal.excerpt(text),
            prompt_chars=len(text),
            repeats=not self._replay.is_finished,
        )

    def receive(self, activity: Activity) -> None:
        """Record that a step or a tool call began, or that a tool call has its result."""
        if not self._replay.is_finished or self._interruption.reason is not None:
            return
        match activity:
            case StepActivity():
                self._append(StepStarted, role=self._progress.current.role.name)
            case ToolActivity(status=status) if status in _DONE:
                self._append(ToolCallEnded, call=self._cut(activity.call), status=status)
            case ToolActivity():
                self._append(
                    ToolCallStarted,
                    call=self._cut(activity.call),
                    title=self._cut(activity.title),
                    name=None if activity.name is None else self._cut(activity.name),
                    tool_kind=activity.kind,
                )

    def open_question(self, ask: Ask) -> None:
        """Record that the agent waits for an answer."""
        if not self._replay.is_finished:
            return
        question = ask.questions[0]
        labels = (self._cut(option.label) for option in question.options[:_MOST_OPTIONS])
        self._append(
            QuestionOpened,
            ask=self._cut(ask.id),
            ask_kind=ask.kind,
            text=self._cut(question.text),
            options=tuple(label[:_MOST_CHARS_OF_OPTION] for label in labels),
        )

    def answer_question(self, ask: Ask, answer: Answer, by: Literal["user", "branch"]) -> None:
        """Record that the agent gets its answer."""
        if self._replay.is_finished:
            self._append(QuestionAnswered, ask=self._cut(ask.id), outcome=answer.outcome, by=by)

    def report_call(self, call: ModelCall) -> None:
        """Record the tokens and the cost of a model call that has ended."""
        if not call.replayed:
            self._append(
                UsageReported,
                source="gateway",
                call=call.id,
                model=None if call.model is None else self._cut(call.model),
                usage=known_usage(call.usage),
                cost_usd=call.cost_usd,
            )

    def report_world_call(self, call: WorldCall) -> None:
        """Record an exchange with a world outside the sandbox, unless it repeats a recorded one."""
        if self._replay.is_finished:
            texts = {name: self._cut(getattr(call, name)) for name in _TEXTS}
            self._append(EnvironmentCalled, **{**dict(call), **texts})

    def report_turn(self, step: Step) -> None:
        """Record the tokens that the agent reported with the last step of its turn."""
        usage = known_usage(step.usage)
        if usage is not None and not step.model_calls:
            self._append(UsageReported, source="agent", usage=usage)

    def _cut(self, text: str) -> str:
        return self._branch.journal.excerpt(text)

    def _append(self, kind: type[EventT], **fields: object) -> None:
        world, node = self._branch.start.id, self._progress.tip
        try:
            self._branch.journal.append(kind, world=world, node=node, **fields)
        except StoreError as error:
            self._interruption.interrupt(error)


def known_usage(usage: Usage | None) -> Usage | None:
    """Return `usage`, or None if no token was counted.

    Each model call has input tokens, so a sum of 0 means that the endpoint reported none.
    """
    counted = usage is not None and usage.input_tokens + usage.output_tokens > 0
    return usage if counted else None
