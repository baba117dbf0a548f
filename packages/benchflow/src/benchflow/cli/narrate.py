"""A rollout as lines of text, while it happens and afterwards."""

from collections.abc import Callable, Iterator

from benchflow_contracts import (
    Branched,
    Event,
    NodeFailed,
    NodeScored,
    NodeValued,
    PhaseEntered,
    Step,
    StepFinished,
)

from . import format as fmt
from .layout import shorten, wrap
from .output import stdout, terminal_width, visible

_WIDTH = 96
"""The longest line of prose in a pipe."""
MARKER = 13
"""Columns before the text of a line."""


def one_line(step: Step) -> str:
    """Return one line for a step: its question, its last command or its message."""
    if step.ask is not None:
        return f"asks: {_in_one_line(step.ask.questions[0].text)}"
    if step.tool_calls:
        return step.tool_calls[-1].title
    return (step.message or step.reasoning).strip().splitlines()[0] if _has_text(step) else ""


def step_lines(step: Step, *, full: bool = False) -> Iterator[tuple[str, str]]:
    """Yield `(marker, text)` for each thing said or done in a step, in order."""
    if step.prompt is not None:
        yield "user", step.prompt
    if step.answer is not None:
        chosen = [option for ids in step.answer.selected.values() for option in ids]
        yield "user", ", ".join([*chosen, *step.answer.text.values()]) or step.answer.outcome
    if step.reasoning:
        yield "thinks", step.reasoning
    if step.message:
        yield "says", step.message
    observed = {o.tool_call_id: o for o in step.observations}
    for call in step.tool_calls:
        yield "does", call.title
        result = observed.get(call.id)
        if result is not None and (full or result.status == "failed"):
            yield result.status, result.content
    if step.ask is not None:
        question = step.ask.questions[0]
        options = " | ".join(option.label for option in question.options)
        yield "asks", f"{_in_one_line(question.text)}  [{options}]"


def narrator() -> Callable[[Event], None]:
    """Return a subscriber that prints a rollout as it happens.

    What an agent says is one line, shortened; every id and number is whole.
    """
    console = stdout()

    def receive(event: Event) -> None:
        width = terminal_width()
        for marker, text, style in _lines_of(event, (width or _WIDTH + MARKER) - MARKER):
            first, *others = fitting_lines(text)
            console.print(f"[dim]{marker:>11}[/dim]  {visible(first)}", style=style)
            for line in others:
                console.print(" " * MARKER + visible(line), style=style)

    return receive


def fitting_lines(text: str) -> list[str]:
    """Return `text` as the lines beside a marker: wrapped on a terminal, as it is for a pipe."""
    width = terminal_width()
    lines = text.splitlines() or [""]
    return (
        lines if width is None else [part for line in lines for part in wrap(line, width - MARKER)]
    )


def _lines_of(event: Event, room: int) -> Iterator[tuple[str, str, str]]:
    match event:
        case PhaseEntered():
            yield event.phase, event.node, "dim"
        case StepFinished():
            if event.label is not None:
                yield "branch", f"{event.node}: {event.label}", "bold magenta"
            for marker, text in step_lines(event.step):
                yield marker, shorten("".join(text.strip().splitlines()[:1]), room), ""
        case Branched(record=record):
            yield "fork", f"{event.node}: {fmt.fork(record)}", "yellow"
        case NodeScored():
            yield (
                "scored",
                f"{event.node}: {event.name} = {fmt.reward(event.result.reward)}",
                "bold",
            )
        case NodeValued():
            yield "value", f"V({event.node}) = {fmt.value(event.value)}", "bold green"
        case NodeFailed(error=error):
            yield "failed", f"{event.node}: {error.boundary}: {error.message}", "red"
        case _:
            pass


def _in_one_line(text: str) -> str:
    return " ".join(text.split())


def _has_text(step: Step) -> bool:
    return bool((step.message or step.reasoning).strip())
