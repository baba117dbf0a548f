"""Qwen's questionnaire: questions in the `_meta` of a permission request.

The reply selects the request's allow option. A map beside the outcome has the answers: from the
index of each question to the chosen labels, joined with a comma.
"""

from typing import Any

from benchflow_contracts import Answer, Ask, AskOption, Question, UsageError
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from .framing import as_object

_KIND = "qwenInteractionKind"
_QUESTIONS = "qwenQuestions"
_SEPARATOR = ", "


class _Option(BaseModel):
    label: str
    description: str = ""


class _Question(BaseModel):
    question: str
    header: str = ""
    options: list[_Option] = []
    multi: bool = Field(default=False, alias="multiSelect")


_LIST: TypeAdapter[list[_Question]] = TypeAdapter(list[_Question])


def questionnaire(params: dict[str, Any]) -> tuple[Question, ...] | None:
    """Return the questions in a permission request, or `None` if it has no questionnaire."""
    tool_call = as_object(params.get("toolCall"))
    meta = as_object(tool_call.get("_meta"))
    if meta.get(_KIND) != "user_question":
        return None
    raw = meta.get(_QUESTIONS) or as_object(tool_call.get("rawInput")).get("questions")
    try:
        questions = _LIST.validate_python(raw)
    except ValidationError:
        return None
    return tuple(_question(index, item) for index, item in enumerate(questions)) or None


def _question(index: int, item: _Question) -> Question:
    return Question(
        id=str(index),
        text=item.question,
        options=tuple(
            AskOption(id=option.label, label=option.label, description=option.description)
            for option in item.options
        ),
        allow_custom=True,
        multi=item.multi,
    )


def questionnaire_reply(ask: Ask, answer: Answer) -> dict[str, Any]:
    """Return the reply: the submit option, with the answers beside it."""
    if answer.outcome == "cancelled":
        return {"outcome": {"outcome": "cancelled"}}
    options = ask.raw.get("options", ())
    kind = "allow" if answer.outcome == "answered" else "reject"
    for option in options:
        if str(option.get("kind", "")).startswith(kind):
            break
    else:
        return {"outcome": {"outcome": "cancelled"}}
    reply: dict[str, Any] = {
        "outcome": {"outcome": "selected", "optionId": option["optionId"]},
    }
    if answer.outcome == "answered":
        reply["answers"] = {item.id: _value(ask, item, answer) for item in ask.questions}
    return reply


def _value(ask: Ask, question: Question, answer: Answer) -> str:
    chosen = answer.selected.get(question.id, ())
    unknown = set(chosen) - {option.id for option in question.options}
    if unknown or not (chosen or question.id in answer.text):
        raise UsageError(f"ask {ask.id!r} has no valid answer to question {question.id!r}")
    custom = answer.text.get(question.id)
    return _SEPARATOR.join((*chosen, custom) if custom else chosen)


def questionnaire_answer(ask: Ask, reply: dict[str, Any]) -> Answer:
    """Return the answer in a reply. A value that is not a label is free text."""
    answers = reply.get("answers")
    if answers is None:
        cancelled = reply["outcome"]["outcome"] == "cancelled"
        return Answer(outcome="cancelled" if cancelled else "declined")
    selected: dict[str, tuple[str, ...]] = {}
    text: dict[str, str] = {}
    for question in ask.questions:
        value = answers.get(question.id, "")
        labels = tuple(o.id for o in question.options if o.id in value.split(_SEPARATOR))
        if value in {option.id for option in question.options}:
            labels = (value,)
        rest = [part for part in value.split(_SEPARATOR) if part not in labels]
        if labels:
            selected[question.id] = labels
        if rest and value not in labels:
            text[question.id] = _SEPARATOR.join(rest)
    return Answer(selected=selected, text=text)
