"""A question that the agent puts to its user, and the answer."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from ._model import Model, RareModel

AskChannel = Literal["elicitation", "permission", "vendor", "mcp"]
AskKind = Literal["question", "permission", "fork"]


class AskOption(Model):
    """One enumerated answer."""

    id: str
    label: str
    description: str = ""
    kind: str | None = None
    """The protocol's kind of the option, such as `allow_once`."""


class Question(Model):
    """One question of an Ask."""

    id: str
    text: str
    options: tuple[AskOption, ...] = ()
    allow_custom: bool = False
    """Whether free text is a valid answer."""
    multi: bool = False


class Ask(Model):
    """What the agent asked, in one form for every protocol.

    By default, only `kind="question"` is a branch point. `permission` guards a tool call. `fork` is
    a request of the program that acts as the agent, and its options are the children. No user
    answers it: a request that is refused is declined.
    """

    id: str
    channel: AskChannel
    kind: AskKind
    questions: tuple[Question, ...] = Field(min_length=1)
    tool_call_id: str | None = None
    raw: Mapping[str, Any] = {}
    """The request as received."""

    @property
    def branchable(self) -> bool:
        """Whether the set of answers is finite: one question with two or more options."""
        return len(self.questions) == 1 and len(self.questions[0].options) >= 2


class Answer(RareModel):
    """What the user said.

    `selected` maps a question id to the ids of the chosen options; `text` maps a
    question id to free text. Both are empty unless `outcome="answered"`.
    """

    outcome: Literal["answered", "declined", "cancelled"] = "answered"
    selected: Mapping[str, tuple[str, ...]] = {}
    text: Mapping[str, str] = {}

    @classmethod
    def choose(cls, ask: Ask, option_id: str) -> "Answer":
        """Answer the first question of `ask` with one of its options."""
        question = ask.questions[0]
        if option_id not in {option.id for option in question.options}:
            raise ValueError(f"ask {ask.id!r} has no option {option_id!r}")
        return cls(selected={question.id: (option_id,)})
