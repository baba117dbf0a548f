"""A rollout told as lines of text, while it happens and afterwards."""

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
from .output import stdout, visible

_WIDTH = 96


def one_line(step: Step) -> str:
    """Return the most telling line of a step."""
    if step.ask is not None:
        return f"asks: {_in_one_line(step.ask.questions[0].text)}"
    if step.tool_calls:
        return step.tool_calls[-1].title
    return (step.message or step.reasoning).strip().splitlines()[0] if _said(step) else ""


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
    """Return a subscriber that prints a rollout as it happens."""
    console = stdout()

    def receive(event: Event) -> None:
        for marker, text, style in _told(event):
            line = text.strip().splitlines()[0] if text.strip() else ""
            shown = line if len(line) <= _WIDTH else line[: _WIDTH - 1] + "…"
            console.print(f"[dim]{marker:>11}[/dim]  {visible(shown)}", style=style)

    return receive


def _told(event: Event) -> Iterator[tuple[str, str, str]]:
    match event:
        case PhaseEntered():
            yield event.phase, event.node, "dim"
        case StepFinished():
            if event.label is not None:
                yield "branch", f"{event.node}: {event.label}", "bold magenta"
            for marker, text in step_lines(event.step):
                yield marker, text, ""
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


def _said(step: Step) -> bool:
    return bool((step.message or step.reasoning).strip())
