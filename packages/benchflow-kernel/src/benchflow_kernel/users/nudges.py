"""Follow-up prompts from a list."""

from collections.abc import Sequence

from benchflow_contracts import Step


def next_nudge(nudges: Sequence[str], steps: Sequence[Step]) -> str | None:
    """Return the first of `nudges` that the steps do not show as sent yet.

    A pure function of the steps, so that the user of a forked child goes on where
    its parent was, without any state to carry over.
    """
    sent = 0
    for step in steps:
        if sent < len(nudges) and step.prompt == nudges[sent]:
            sent += 1
    return nudges[sent] if sent < len(nudges) else None
