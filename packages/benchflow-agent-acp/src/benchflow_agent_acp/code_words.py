"""Code words: how a probe finds out what a session knows."""

import re
import secrets
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from benchflow_contracts import AgentError, Sandbox, Session

TELL_PROMPT = "Remember the code word {word}. Answer in one sentence, without a tool."
RECALL_PROMPT = "Say every code word that I told you, and nothing else. Do not call a tool."

_WORD = re.compile(r"word-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class Place:
    """A session and the box that its agent is in."""

    box: Sandbox
    session: Session


Branch = Callable[[], AbstractAsyncContextManager[Place]]


async def tell(session: Session) -> str:
    """Tell the session a new word; return it."""
    word = f"word-{secrets.token_hex(4)}"
    await session.prompt(TELL_PROMPT.format(word=word))
    return word


async def expect_words(session: Session, who: str, words: set[str]) -> None:
    """Raise `AgentError` unless the session knows exactly `words`."""
    before = len(session.steps)
    await session.prompt(RECALL_PROMPT)
    said = "\n".join(step.message for step in session.steps[before:])
    known = set(_WORD.findall(said))
    if known - words:
        raise AgentError(f"a leak: {who} knows what was told to another branch")
    if words - known:
        raise AgentError(f"{who} does not know what it was told: it said {said!r:.200}")


async def diverge(parent: Session, branches: Iterable[tuple[str, Branch]], past: str) -> set[str]:
    """Tell each branch a word of its own; raise `AgentError` when one knows another's.

    One branch after the other, so that a later one would read what an earlier one
    wrote into a shared file. Returns what the parent knows.
    """
    words = {past, await tell(parent)}
    for who, branch in branches:
        async with branch() as place:
            await expect_words(place.session, who, {past})
            await expect_words(place.session, who, {past, await tell(place.session)})
    await expect_words(parent, "the parent", words)
    return words
