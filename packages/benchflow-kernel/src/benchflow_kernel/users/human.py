"""The user at the terminal."""

import asyncio
import sys
from collections.abc import Sequence
from typing import TextIO

from benchflow_contracts import Answer, Ask, Question, Step

from .daemon import call_in_daemon


class HumanUser:
    """Shows each question on `output` and reads the reply from `input_`.

    After invalid input the question is repeated; the end of the input cancels the Ask.
    Control characters of the agent are escaped, never sent to the terminal. If a waiting
    question is cancelled, its reader continues: the next typed line answers the next
    question.
    """

    def __init__(self, input_: TextIO | None = None, output: TextIO | None = None) -> None:
        self._input = input_ or sys.stdin
        self._output = output or sys.stderr
        self._turn = asyncio.Lock()

    async def answer(self, ask: Ask, steps: Sequence[Step]) -> Answer:
        """Show every question of `ask` to the person, one Ask at a time."""
        del steps
        selected: dict[str, tuple[str, ...]] = {}
        text: dict[str, str] = {}
        async with self._turn:
            for question in ask.questions:
                reply = await self._ask(question, ask.kind)
                if reply is None:
                    return Answer(outcome="cancelled")
                if isinstance(reply, str):
                    text[question.id] = reply
                else:
                    selected[question.id] = reply
        return Answer(selected=selected, text=text)

    async def nudge(self, steps: Sequence[Step]) -> str | None:
        """Read a follow-up prompt; an empty line or the end of the input stops."""
        async with self._turn:
            said = _printable(steps[-1].message) if steps else ""
            self._say(f"\nThe agent ended its turn. {said}\nFollow-up (empty to stop): ")
            line = await self._read()
        return line or None

    async def aclose(self) -> None:
        """Do nothing: the streams belong to the caller."""

    async def _ask(self, question: Question, kind: str) -> tuple[str, ...] | str | None:
        self._say(f"\nThe agent asks ({kind}): {_printable(question.text)}\n")
        for number, option in enumerate(question.options, 1):
            description = f" - {_printable(option.description)}" if option.description else ""
            self._say(f"  {number}) {_printable(option.label)}{description}\n")
        while True:
            self._say(_prompt(question))
            line = await self._read()
            if line is None:
                return None
            reply = _parse(question, line)
            if reply is not None:
                return reply
            self._say("That is not one of the answers.\n")

    async def _read(self) -> str | None:
        line = await call_in_daemon(self._input.readline)
        return line.strip() if line else None

    def _say(self, text: str) -> None:
        self._output.write(text)
        self._output.flush()


def _prompt(question: Question) -> str:
    if not question.options:
        return "> "
    numbers = "numbers with commas" if question.multi else "a number"
    return f"Answer with {numbers}{' or your own words' if question.allow_custom else ''}: "


def _parse(question: Question, line: str) -> tuple[str, ...] | str | None:
    """Return option ids or free text, or `None` if `line` is not a valid answer."""
    parts = [part.strip() for part in line.split(",")] if question.multi else [line]
    found = [_option(question, part) for part in parts]
    chosen = tuple(dict.fromkeys(option for option in found if option is not None))
    if question.options and chosen and None not in found:
        return chosen
    free = question.allow_custom or not question.options
    return line if free and line else None


def _option(question: Question, word: str) -> str | None:
    if word.isascii() and word.isdigit() and 1 <= int(word) <= len(question.options):
        return question.options[int(word) - 1].id
    for option in question.options:
        if word.casefold() in {option.id.casefold(), option.label.casefold()}:
            return option.id
    return None


def _printable(text: str) -> str:
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode()
        for char in text.encode("utf-8", "replace").decode("utf-8")
    )
