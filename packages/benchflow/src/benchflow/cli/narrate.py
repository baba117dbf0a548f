"""A rollout as lines of text, for a running or a finished rollout."""

from collections.abc import Callable

from benchflow_contracts import Event
from benchflow_store import EventLine, StepLine, event_lines

from . import format as fmt
from .format import shorten, wrap
from .output import stdout, terminal_width, visible

_WIDTH = 96
"""The longest line of prose in a pipe."""
MARKER = 13
"""The columns before the text of a line."""


def narrator() -> Callable[[Event], None]:
    """Return a subscriber that prints a rollout as it happens.

    A message of the agent is shortened to one line. Ids and numbers are never shortened.
    """
    console = stdout()

    def receive(event: Event) -> None:
        width = terminal_width()
        columns = (width or _WIDTH + MARKER) - MARKER
        for marker, text, style in (_parts(line, columns) for line in event_lines(event)):
            first, *others = fitting_lines(text)
            console.print(f"[dim]{marker:>11}[/dim]  {visible(first)}", style=style)
            for line in others:
                console.print(" " * MARKER + visible(line), style=style)

    return receive


def fitting_lines(text: str) -> list[str]:
    """Return `text` as the lines beside a marker: wrapped on a terminal, unchanged for a pipe."""
    width = terminal_width()
    lines = text.splitlines() or [""]
    return (
        lines if width is None else [part for line in lines for part in wrap(line, width - MARKER)]
    )


def marker_of(line: StepLine) -> str:
    """Return the word beside a line: its kind, or the status of a tool call."""
    return line.status or line.kind


def _parts(line: EventLine, columns: int) -> tuple[str, str, str]:
    """Return the marker, the text and the style of a line."""
    at = line.node
    match line.kind:
        case "phase":
            return line.text, at, "dim"
        case "branch":
            return "branch", f"{at}: {line.text}", "bold magenta"
        case "fork":
            return "fork", f"{at}: {fmt.fork(line.fork) if line.fork else ''}", "yellow"
        case "score":
            return "scored", f"{at}: {line.text} = {fmt.reward(line.reward)}", "bold"
        case "value":
            return "value", f"V({at}) = {fmt.value(line.value)}", "bold green"
        case "failure":
            return "failed", f"{at}: {line.text}", "red"
        case "step":
            assert line.line is not None
            first = "".join(line.line.text.strip().splitlines()[:1])
            return marker_of(line.line), shorten(first, columns), ""
