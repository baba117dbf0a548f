"""The messages of `benchflow/ask_user`: questions of the portable tool, and replies."""

from typing import Any

from benchflow_contracts import Answer, Ask, AskOption, Question, UsageError
from pydantic import BaseModel, ConfigDict, Field

from benchflow_agent_acp.state import IncomingRequest

METHOD = "benchflow/ask_user"
"""The host gives this method to the broker's messages. An agent never sends it."""

_QUESTION = "answer"


class _Form(BaseModel):
    model_config = ConfigDict(strict=True)

    question: str = Field(min_length=1, max_length=4096)
    options: list[str] = Field(default=[], max_length=16)
    allow_other: bool = False
    tool_call_id: str | None = Field(default=None, alias="toolCallId")


def tool_ask(request: IncomingRequest) -> Ask:
    """Return the request as an Ask.

    Raises:
        ValidationError: The request is not a valid question.
    """
    form = _Form.model_validate(request.params)
    labels = [label for label in dict.fromkeys(form.options) if label.strip()]
    question = Question(
        id=_QUESTION,
        text=form.question,
        options=tuple(AskOption(id=label, label=label) for label in labels),
        allow_custom=form.allow_other or not labels,
    )
    return Ask(
        id=f"ask-{request.id}",
        channel="mcp",
        kind="question",
        questions=(question,),
        tool_call_id=form.tool_call_id,
        raw=request.params,
    )


def tool_reply(ask: Ask, answer: Answer) -> dict[str, Any]:
    """Return the result that sends `answer` to the tool."""
    if answer.outcome != "answered":
        return {"outcome": answer.outcome}
    question = ask.questions[0]
    chosen = answer.selected.get(question.id, ())
    unknown = set(chosen) - {option.id for option in question.options}
    if unknown or len(chosen) > 1:
        raise UsageError(f"ask {ask.id!r} does not have the options {sorted(chosen)!r}")
    text = answer.text.get(question.id)
    if text is not None and not question.allow_custom:
        raise UsageError(f"ask {ask.id!r} does not accept free text")
    if not chosen and text is None:
        raise UsageError(f"the answer to ask {ask.id!r} does not answer its question")
    reply: dict[str, Any] = {"outcome": "answered"}
    if chosen:
        reply["selected"] = chosen[0]
    if text is not None:
        reply["text"] = text
    return reply


def tool_answer(ask: Ask, reply: dict[str, Any]) -> Answer:
    """Return the answer in a reply."""
    outcome = reply.get("outcome")
    if outcome != "answered":
        return Answer(outcome="declined" if outcome == "declined" else "cancelled")
    key = ask.questions[0].id
    selected = {key: (str(reply["selected"]),)} if "selected" in reply else {}
    return Answer(selected=selected, text={key: str(reply["text"])} if "text" in reply else {})
