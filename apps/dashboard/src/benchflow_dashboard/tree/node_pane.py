"""The pane of one node: its value, its fork or question, its credit and its step."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchflow_contracts import (
    BranchRecord,
    Credit,
    NodeError,
    Question,
    RolloutNode,
    Value,
)
from benchflow_store import step_title

from benchflow_dashboard.visible_text import one_line

from .display import in_order
from .facts import TreeFacts
from .glyphs import kind_of, letter_of, words_of

_TITLE = 100
_CHILDREN = 200
"""The maximum number of children in the table of a fork; further ones are counted."""


@dataclass(frozen=True, slots=True)
class ChildRow:
    """One child of a fork, and what it was worth."""

    node: RolloutNode
    title: str
    value: Value | None
    drop: float | None
    """V(child) - V(node)."""
    is_best: bool


@dataclass(frozen=True, slots=True)
class OptionRow:
    """One option of a question; `child` is `None` if no branch took it."""

    id: str
    label: str
    description: str
    child: ChildRow | None
    probability: float | None
    """How probable it is that the task's user gives the answer; `None` if nobody was asked."""


@dataclass(frozen=True, slots=True)
class NodePane:
    """The pane of one node."""

    node: RolloutNode
    words: str
    """The kind of the node."""
    letter: str
    title: str
    value: Value | None
    drop: float | None
    credit: Credit | None
    fork: BranchRecord | None
    """The fork, or the reason that the node was not forked."""
    question: str
    options: Sequence[OptionRow]
    children: Sequence[ChildRow]
    """Of a fork: the children that are not in `options`."""
    hidden_children: int
    errors: Sequence[NodeError]

    @classmethod
    def of(cls, node: RolloutNode, facts: TreeFacts) -> "NodePane":
        """Return the pane of `node`."""
        value = facts.values.get(node.id)
        kind = kind_of(node, "", is_running=node.id in facts.running)
        rows = _child_rows(node, facts) if len(node.children) > 1 or node.branch else []
        options = _options(node, rows)
        taken = {row.child.node.id for row in options if row.child is not None}
        others = [row for row in rows if row.node.id not in taken]
        ask = None if node.step is None else node.step.ask
        return cls(
            node=node,
            words=words_of(kind, 0, has_number=value is not None),
            letter=letter_of(node),
            title=title_of(node),
            value=value,
            drop=facts.drop(node),
            credit=node.credit,
            fork=node.branch,
            question="" if ask is None else ask.questions[0].text,
            options=options,
            children=others[:_CHILDREN],
            hidden_children=max(len(others) - _CHILDREN, 0),
            errors=() if node.error is None else (node.error,),
        )


def title_of(node: RolloutNode) -> str:
    """Return one line about a node: its label, or the title of its step."""
    if node.label is not None:
        return one_line(node.label, _TITLE)
    return "start" if node.step is None else one_line(step_title(node.step), _TITLE)


def _child_rows(node: RolloutNode, facts: TreeFacts) -> list[ChildRow]:
    means = [facts.values[c.id].mean for c in node.children if c.id in facts.values]
    best = max(means) if len(set(means)) > 1 else None
    return [
        ChildRow(
            node=child,
            title=title_of(child),
            value=(value := facts.values.get(child.id)),
            drop=facts.drop(child),
            is_best=value is not None and value.mean == best,
        )
        for child in in_order(node.children)
    ]


def _options(node: RolloutNode, rows: Sequence[ChildRow]) -> list[OptionRow]:
    step, answers = node.step, None if node.branch is None else node.branch.answers
    if step is None or step.ask is None:
        return []
    # Each answer of a fork is one option of the first question.
    question = step.ask.questions[0]
    free = list(rows)
    found: list[OptionRow] = []
    for option in question.options:
        child = next((row for row in free if _takes(row.node, question, option.id)), None)
        if child is not None:
            free.remove(child)
        # Equal labels have the id behind them.
        labels = (option.label or option.id, f"{option.label or option.id} ({option.id})")
        probability = next((answers[each] for each in labels if answers and each in answers), None)
        found.append(OptionRow(option.id, option.label, option.description, child, probability))
    return found


def _takes(node: RolloutNode, question: Question, option: str) -> bool:
    """Return whether the branch of `node` began with an option. A lost child has only a label."""
    if node.step is not None and node.step.answer is not None:
        # The ids of questions are new in each session, so only the chosen option is compared.
        chosen = node.step.answer.selected.values()
        return any(option in options for options in chosen)
    labels = {each.id: each.label for each in question.options}
    return node.label is not None and node.label == labels[option]
