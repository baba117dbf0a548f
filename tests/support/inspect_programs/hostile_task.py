"""Tasks of Inspect whose scorers and files are not what they should be."""

import sys
from collections.abc import Callable
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, Target, accuracy, scorer
from inspect_ai.solver import TaskState

HUGE = 10_000_000
FILES = {
    "above": {"../../evil": "x"},
    "above-the-root": {"/../../../evil": "x"},
    "the-directory": {".": "x"},
    "null": {"a\0b": "x"},
    "long": {"a" * 300: "x"},
    "below-a-file": {"a": "x", "a/b": "x"},
    "another-container": {"db:/a": "x"},
    "good": {"a/b": "x", "/etc/a": "y"},
}


def _raise(error: BaseException) -> Any:
    raise error


SCORES: dict[str, Callable[[], Any]] = {
    "nan": lambda: Score(value=float("nan")),
    "infinite": lambda: Score(value={"a": float("inf")}),
    "huge integer": lambda: Score(value=10**400),
    "nan in words": lambda: Score(value="nan"),
    "list with a word": lambda: Score(value=[1.0, "many"]),
    "no score": lambda: None,
    "another object": lambda: 1.0,
    "many values": lambda: Score(value={str(n): 1.0 for n in range(100_000)}),
    "long word": lambda: Score(value="x" * HUGE),
    "long error": lambda: _raise(ValueError("x" * HUGE)),
    "exit": lambda: sys.exit(3),
    "recursion": lambda: _raise(RecursionError("too deep")),
    "long explanation": lambda: Score(value="C", explanation="x" * HUGE, answer="y" * HUGE),
}


@scorer(metrics=[accuracy()])
def says(kind: str) -> Any:
    async def score(state: TaskState, target: Target) -> Score:
        score: Score = SCORES[kind]()
        return score

    return score


@task
def hostile_scores(kind: str) -> Task:
    return Task(dataset=[Sample(id="one", input="Do nothing.")], scorer=says(kind))


@task
def hostile_files() -> Task:
    samples = [Sample(id=name, input="Do nothing.", files=each) for name, each in FILES.items()]
    return Task(dataset=samples, scorer=says("nan"), sandbox="benchflow")
