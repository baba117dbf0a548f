"""The user that follows rules."""

import re
from collections.abc import Sequence

from benchflow_contracts import Answer, Ask, Question, ScriptedAnswer, Step, TaskError

from .nudges import next_nudge
from .permission import allow

_SEARCHED_CHARS = 4096
"""Characters of a question to search, at most: a slow pattern must not run without end."""


class ScriptedUser:
    """Answers each question by the first rule whose pattern matches its text.

    A rule's `option` is the id or the label of an option (case does not matter), or a pattern
    that matches exactly one option, since agents choose the words. Its `text` is used if no
    option matches and free text is allowed. If no rule answers a question, the whole Ask is
    declined. A permission request without a rule is allowed.

    Raises:
        TaskError: A pattern is not a regular expression.
    """

    def __init__(self, answers: Sequence[ScriptedAnswer] = (), nudges: Sequence[str] = ()) -> None:
        self._rules = [(_compile(rule, index), rule) for index, rule in enumerate(answers)]
        for index, rule in enumerate(answers):
            _pattern(rule.option or "", f"user.answers.{index}.option")
        self._nudges = tuple(nudges)

    async def answer(self, ask: Ask, steps: Sequence[Step]) -> Answer:
        """Apply the rules to every question of `ask`."""
        del steps
        selected: dict[str, tuple[str, ...]] = {}
        text: dict[str, str] = {}
        for question in ask.questions:
            rule = self._rule(question)
            option = None if rule is None else _option(rule, question)
            if option is not None:
                selected[question.id] = (option,)
            elif rule is not None and rule.text is not None and question.allow_custom:
                text[question.id] = rule.text
            elif ask.kind == "permission":
                return allow(ask)
            else:
                return Answer(outcome="declined")
        return Answer(selected=selected, text=text)

    async def nudge(self, steps: Sequence[Step]) -> str | None:
        """Return the next prompt of the list."""
        return next_nudge(self._nudges, steps)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to release."""

    def _rule(self, question: Question) -> ScriptedAnswer | None:
        searched = question.text[:_SEARCHED_CHARS]
        return next((rule for pattern, rule in self._rules if pattern.search(searched)), None)


def _compile(rule: ScriptedAnswer, index: int) -> re.Pattern[str]:
    return _pattern(rule.match, f"user.answers.{index}.match")


def _pattern(text: str, key: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.IGNORECASE | re.DOTALL)
    except re.error as error:
        raise TaskError(
            f"pattern {text!r} is not a regular expression: {error}", where=f"task.toml:{key}"
        ) from error


def _option(rule: ScriptedAnswer, question: Question) -> str | None:
    if rule.option is None:
        return None
    wanted = rule.option.strip().casefold()
    for option in question.options:
        if option.id == rule.option or option.label.strip().casefold() == wanted:
            return option.id
    pattern = re.compile(rule.option, re.IGNORECASE | re.DOTALL)
    fitting = [
        option.id
        for option in question.options
        if pattern.search(f"{option.id}\n{option.label}\n{option.description}"[:_SEARCHED_CHARS])
    ]
    return fitting[0] if len(fitting) == 1 else None
