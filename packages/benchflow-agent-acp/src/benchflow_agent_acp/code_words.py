"""Code words, which show what a session knows."""

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
class SandboxedSession:
    """A session and the sandbox of its agent."""

    sandbox: Sandbox
    session: Session


OpenBranch = Callable[[], AbstractAsyncContextManager[SandboxedSession]]


async def tell_word(session: Session) -> str:
    """Tell the session a new code word; return the word."""
    word = f"word-{secrets.token_hex(4)}"
    await session.prompt(TELL_PROMPT.format(word=word))
    return word


async def expect_words(session: Session, label: str, words: set[str]) -> None:
    """Raise `AgentError` unless the session knows exactly `words`. `label` names it in errors."""
    before = len(session.steps)
    await session.prompt(RECALL_PROMPT)
    text = "\n".join(step.message for step in session.steps[before:])
    known = set(_WORD.findall(text))
    if known - words:
        raise AgentError(f"a leak: {label} knows a code word of another branch")
    if words - known:
        raise AgentError(f"{label} does not know its code words: it said {text!r:.200}")


async def check_isolation(
    parent: Session, branches: Iterable[tuple[str, OpenBranch]], past: str
) -> set[str]:
    """Tell each branch its own word; raise `AgentError` if a branch knows another's word.

    The branches run one after the other, so a later branch would read a word that an earlier branch
    wrote into a shared file. `past` is the word from before the fork. Returns the parent's words.
    """
    words = {past, await tell_word(parent)}
    for label, branch in branches:
        async with branch() as child:
            await expect_words(child.session, label, {past})
            await expect_words(child.session, label, {past, await tell_word(child.session)})
    await expect_words(parent, "the parent", words)
    return words
