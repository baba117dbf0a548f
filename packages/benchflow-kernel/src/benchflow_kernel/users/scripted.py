"""Users without a model: they choose the first option, or apply rules."""

import re
from collections.abc import Sequence

from benchflow_contracts import Answer, Ask, AskOption, Question, ScriptedAnswer, Step, TaskError


def next_nudge(nudges: Sequence[str], steps: Sequence[Step]) -> str | None:
    """Return the first of `nudges` that was not sent in `steps`.

    It depends only on the steps, so the user of a forked child continues where its parent
    was, without other state.
    """
    sent = 0
    for step in steps:
        if sent < len(nudges) and step.prompt == nudges[sent]:
            sent += 1
    return nudges[sent] if sent < len(nudges) else None


def allow(ask: Ask) -> Answer:
    """Allow the request: once if that is an option, else always.

    The sandbox protects the host, so a refused tool call would only stop the rollout.
    Without any option the request is declined.
    """
    selected: dict[str, tuple[str, ...]] = {}
    for question in ask.questions:
        if not question.options:
            return Answer(outcome="declined")
        selected[question.id] = (min(question.options, key=_rank).id,)
    return Answer(selected=selected)


def _rank(option: AskOption) -> int:
    kind = option.kind or ""
    if kind == "allow_once":
        return 0
    if kind.startswith("allow"):
        return 1
    return 3 if kind.startswith("reject") else 2


class AutoUser:
    """Chooses the first option of every question and allows every permission request.

    If a question requires free text, the whole Ask is declined.
    """

    def __init__(self, nudges: Sequence[str] = ()) -> None:
        self._nudges = tuple(nudges)

    async def answer(self, ask: Ask, steps: Sequence[Step]) -> Answer:
        """Return the first option of each question."""
        del steps
        if ask.kind == "permission":
            return allow(ask)
        if not all(question.options for question in ask.questions):
            return Answer(outcome="declined")
        return Answer(selected={item.id: (item.options[0].id,) for item in ask.questions})

    async def nudge(self, steps: Sequence[Step]) -> str | None:
        """Return the next prompt of the list."""
        return next_nudge(self._nudges, steps)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to release."""


_SEARCHED_CHARS = 4096
"""The longest text that a pattern searches, so that a slow pattern ends."""


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
    label = rule.option.strip().casefold()
    for option in question.options:
        if option.id == rule.option or option.label.strip().casefold() == label:
            return option.id
    pattern = re.compile(rule.option, re.IGNORECASE | re.DOTALL)
    matches = [
        option.id
        for option in question.options
        if pattern.search(f"{option.id}\n{option.label}\n{option.description}"[:_SEARCHED_CHARS])
    ]
    return matches[0] if len(matches) == 1 else None
