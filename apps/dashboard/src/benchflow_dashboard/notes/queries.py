"""Reads of notes and labels, in the same read transaction as those of the index."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from benchflow_dashboard.index.database import IndexSession


@dataclass(frozen=True, slots=True)
class Label:
    """A label on a rollout or on a node."""

    node: str
    """Empty for the whole rollout."""
    label: str
    author: str
    at: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Note:
    """A note on a rollout or on a node."""

    id: int
    node: str
    text: str
    author: str
    at: float


@dataclass(frozen=True, slots=True)
class Annotations:
    """What users wrote about one rollout."""

    rollout: str
    labels: tuple[Label, ...]
    notes: tuple[Note, ...]
    """The oldest first."""


def read_annotations(session: IndexSession, rollout: str) -> Annotations:
    """Return the labels and notes of a rollout and of its nodes."""
    labels = session.rows(
        "SELECT node, label, author, at FROM labels WHERE rollout = ? ORDER BY node, label",
        (rollout,),
    )
    notes = session.rows(
        "SELECT id, node, text, author, at FROM notes WHERE rollout = ? ORDER BY id", (rollout,)
    )
    return Annotations(
        rollout, tuple(Label(*row) for row in labels), tuple(Note(*row) for row in notes)
    )


def read_labels(session: IndexSession, rollouts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the labels of rollouts, also those of their nodes. An unlabelled one is left out."""
    rows = session.rows(
        "SELECT DISTINCT rollout, label FROM labels"
        " WHERE rollout IN (SELECT value FROM json_each(?)) ORDER BY label",
        (json.dumps(rollouts),),
    )
    found: dict[str, tuple[str, ...]] = {}
    for rollout, label in rows:
        found[rollout] = (*found.get(rollout, ()), label)
    return found
