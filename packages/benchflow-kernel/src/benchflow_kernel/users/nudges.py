"""Follow-up prompts from a list."""

from collections.abc import Sequence

from benchflow_contracts import Step


def next_nudge(nudges: Sequence[str], steps: Sequence[Step]) -> str | None:
    """Return the first of `nudges` that was not sent in `steps`.

    It depends only on the steps, so the user of a forked child continues where its parent
    was, without other state.
    """
    sent = 0
    for step in steps:
        if sent < len(nudges) and step.prompt == nudges[sent]:
            sent += 1
    return nudges[sent] if sent < len(nudges) else None
