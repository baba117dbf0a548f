"""The grammar of a simulated user's reply."""

from collections.abc import Mapping
from typing import cast

from benchflow_contracts import Answer, Ask, Question


class ReplyError(ValueError):
    """The model's reply breaks the grammar. The message is sent back to the model."""


def parse_answer(reply: Mapping[str, object], ask: Ask) -> Answer:
    """Return the answer of `reply` to every question of `ask`.

    The grammar is `{"answers": {QUESTION: {"options": [ID, ...]} | {"text": T}}}` or
    `{"decline": true}`.

    Raises:
        ReplyError: The reply has another form.
    """
    if reply == {"decline": True}:
        return Answer(outcome="declined")
    answers = reply.get("answers")
    if set(reply) != {"answers"} or not isinstance(answers, dict):
        raise ReplyError('the reply needs exactly the key "answers", or {"decline": true}')
    given = cast("dict[str, object]", answers)
    if set(given) != {question.id for question in ask.questions}:
        raise ReplyError('"answers" needs exactly one entry per question id')
    selected: dict[str, tuple[str, ...]] = {}
    text: dict[str, str] = {}
    for question in ask.questions:
        part = given[question.id]
        item = cast("dict[str, object]", part) if isinstance(part, dict) else {}
        options, words = item.get("options"), item.get("text")
        if set(item) == {"options"} and isinstance(options, list):
            selected[question.id] = _options(question, cast("list[object]", options))
        elif set(item) == {"text"} and isinstance(words, str):
            text[question.id] = _text(question, words)
        else:
            raise ReplyError(f'question {question.id!r} needs "options" or "text"')
    return Answer(selected=selected, text=text)


def parse_nudge(reply: Mapping[str, object]) -> str | None:
    """Return the follow-up of `{"say": TEXT}`, or `None` for `{"done": true}`.

    Raises:
        ReplyError: The reply has another form.
    """
    match reply:
        case {"done": True, **rest} if not rest:
            return None
        case {"say": str() as text, **rest} if not rest and text.strip():
            return text
        case _:
            raise ReplyError('the reply needs {"say": TEXT} or {"done": true}')


def _options(question: Question, options: list[object]) -> tuple[str, ...]:
    known = {option.id for option in question.options}
    chosen = tuple(option for option in options if isinstance(option, str) and option in known)
    if not chosen or len(chosen) != len(options):
        raise ReplyError(f"question {question.id!r} has the option ids {sorted(known)}")
    if len(chosen) > 1 and not question.multi:
        raise ReplyError(f"question {question.id!r} takes one option")
    return chosen


def _text(question: Question, words: str) -> str:
    if question.options and not question.allow_custom:
        raise ReplyError(f"question {question.id!r} takes no free text")
    return words
