"""The user at the terminal."""

import asyncio
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO
from weakref import WeakKeyDictionary

from benchflow_contracts import Answer, Ask, Question, Step


class HumanUser:
    """Shows each question on `output` and reads the reply from `input_`.

    After invalid input the question is repeated; the end of the input cancels the Ask.
    Control characters of the agent are escaped, never sent to the terminal. Users of one
    input, such as those of a fork's children, ask one after another. A line that is typed while
    no question waits is dropped.
    """

    def __init__(self, input_: TextIO | None = None, output: TextIO | None = None) -> None:
        self._input = input_ or sys.stdin
        self._lines = _READERS.setdefault(self._input, _LineReader())
        self._output = output or sys.stderr

    async def answer_probabilities(self, ask: Ask, steps: Sequence[Step]) -> None:
        """Return `None`: a person is not asked about a question that is forked anyway."""
        del ask, steps

    async def answer(self, ask: Ask, steps: Sequence[Step]) -> Answer:
        """Show every question of `ask` to the person, one Ask at a time."""
        del steps
        selected: dict[str, tuple[str, ...]] = {}
        text: dict[str, str] = {}
        async with self._lines.turn():
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
        async with self._lines.turn():
            message = _printable(steps[-1].message) if steps else ""
            self._say(f"\nThe agent ended its turn. {message}\nFollow-up (empty to stop): ")
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
        line = await self._lines.read(self._input)
        return line.strip() if line else None

    def _say(self, text: str) -> None:
        self._output.write(text)
        self._output.flush()


class _LineReader:
    """Reads the lines of one input for one waiting question at a time.

    A read cannot be interrupted. The thread of a cancelled question continues to read, and its
    line goes to the question that waits then.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: asyncio.Future[str] | None = None
        self._is_reading = False
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )

    def turn(self) -> asyncio.Lock:
        """Return the lock that a question holds while it uses the input."""
        return self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())

    async def read(self, stream: TextIO) -> str:
        """Return the next line of `stream`, or "" at its end."""
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiting = future
            starts, self._is_reading = not self._is_reading, True
        if starts:
            threading.Thread(
                target=self._run, args=(stream,), name="benchflow-user", daemon=True
            ).start()
        try:
            return await future
        finally:
            with self._lock:
                if self._waiting is future:
                    self._waiting = None

    def _run(self, stream: TextIO) -> None:
        line, failure = "", None
        try:
            line = stream.readline()
        except Exception as error:  # noqa: BLE001 - raised by `read`
            failure = error
        with self._lock:
            self._is_reading = False
            future, self._waiting = self._waiting, None
        if future is not None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                future.get_loop().call_soon_threadsafe(_deliver, future, line, failure)


_READERS: WeakKeyDictionary[TextIO, _LineReader] = WeakKeyDictionary()
"""The reader of each input, shared by its users."""


def _deliver(future: "asyncio.Future[str]", line: str, failure: Exception | None) -> None:
    if future.done():
        return
    if failure is None:
        future.set_result(line)
    else:
        future.set_exception(failure)


def _prompt(question: Question) -> str:
    if not question.options:
        return "> "
    numbers = "numbers with commas" if question.multi else "a number"
    return f"Answer with {numbers}{' or your own words' if question.allow_custom else ''}: "


def _parse(question: Question, line: str) -> tuple[str, ...] | str | None:
    """Return option ids or free text, or `None` if `line` is not a valid answer."""
    parts = [part.strip() for part in line.split(",")] if question.multi else [line]
    matches = [_option(question, part) for part in parts]
    chosen = tuple(dict.fromkeys(option for option in matches if option is not None))
    if question.options and chosen and None not in matches:
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
