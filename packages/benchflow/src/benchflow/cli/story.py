"""The story of one rollout in at most 30 lines: question, fork, rewards, record."""

from itertools import islice
from typing import Literal

from benchflow_contracts import Branched, Event, RolloutNode, RolloutTree, Step, StepFinished
from benchflow_kernel import value_of
from benchflow_store import step_title

from . import format as fmt
from .format import shorten, wrap
from .output import stdout, terminal_width, visible

_KEY = 9
"""The columns of the name before each line."""
_WIDTH = 80
"""The columns of a line in a pipe."""
_MAX_ACTIONS = 3
"""The maximum number of actions that are shown."""
_MAX_OPTIONS = 6
_MAX_CHILDREN = 8

Fit = Literal["wrap", "cut", "copy"]
"""`wrap`: broken between words. `cut`: shortened. `copy`: one long line, to be copied."""

_COPIED = {
    "live": "files, services and the agent's own process",
    "state": "files, services and the agent's saved session",
    "replay": "files and services; the agent repeats its turn",
}
"""The parts that a fork copies, by its fidelity."""


class Story:
    """Prints a rollout while it happens. Call it with each event, then call `end`."""

    def __init__(self) -> None:
        self._console = stdout()
        self._width = terminal_width() or _WIDTH
        self._actions = 0
        self._asked = self._forked = False

    def tell(self, key: str, text: str, *, style: str = "", fit: Fit = "wrap") -> None:
        """Print one named line. `fit` is the treatment of a text that is too long."""
        columns = max(self._width - _KEY - 1, 1)
        texts = {"wrap": wrap(text, columns), "cut": [shorten(text, columns)], "copy": [text]}
        first, *others = texts[fit]
        self._console.print(f"[bold]{visible(key):<{_KEY}}[/bold] {visible(first)}", style=style)
        for line in others:
            self._console.print(" " * (_KEY + 1) + visible(line), style=style)

    def __call__(self, event: Event) -> None:
        """Print the lines that an event adds to the story, up to the first fork."""
        if isinstance(event, StepFinished) and not self._forked:
            self._add_step(event.step)
        elif isinstance(event, Branched) and event.record.children and not self._forked:
            self._forked = True
            parts = _COPIED[event.record.fidelity]
            fork = f"{event.node}: {event.record.children} children, {event.record.fidelity}"
            self.tell("Fork", f"{fork} ({parts})", style="yellow")

    def _add_step(self, step: Step) -> None:
        if step.prompt is not None and not self._actions:
            self.tell("User", " ".join(step.prompt.split()), fit="cut")
        if step.ask is None:
            self._actions += 1
            if self._actions <= _MAX_ACTIONS:
                self.tell("Acts", step_title(step), fit="cut")
        elif not self._asked:
            self._asked = True
            question = step.ask.questions[0]
            self.tell("Asks", " ".join(question.text.split()), style="bold")
            for option in question.options[:_MAX_OPTIONS]:
                self.tell("", f"- {option.label}", fit="cut")

    def end(self, tree: RolloutTree) -> None:
        """Print the reward of each child of the first fork, and V at the fork."""
        forks = [node for node in tree.nodes if node.branch is not None and node.children]
        if not forks:
            self.tell("Reward", fmt.reward(tree.root.reward), style="bold")
            return
        fork = forks[0]
        for child in islice(fork.children, _MAX_CHILDREN):
            mark = " (the user's answer)" if _is_users(fork, child) else ""
            self.tell(f"  {child.id}", f"reward {_reward(child):<6} {child.label or ''}{mark}")
        more = len(fork.children) - _MAX_CHILDREN
        if more > 0:
            self.tell("", f"and {more} more children")
        self.tell(f"V({fork.id})", fmt.value(value_of(fork)), style="bold green")
        if len(forks) > 1:
            self.tell("", f"and {len(forks) - 1} more forks below")


def _is_users(fork: RolloutNode, child: RolloutNode) -> bool:
    answers = None if fork.branch is None else fork.branch.answers
    return bool(answers and answers.get(child.label or ""))


def _reward(node: RolloutNode) -> str:
    value = value_of(node)
    return fmt.reward(None if value is None else value.mean)
