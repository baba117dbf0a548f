"""Commands that need no shell."""

import re

_PLAIN = re.compile(r"[A-Za-z0-9_@%+:,./-][A-Za-z0-9_@%+=:,./ -]*")


def plain_words(command: str) -> list[str] | None:
    """Return the words of a command that says the same to a shell and to `execve`.

    `None` for one with an expansion, a quote, an assignment or more than one program in it.
    The first word may still be one that only a shell knows, such as `cd`.
    """
    if not _PLAIN.fullmatch(command):
        return None
    words = command.split()
    return None if "=" in words[0] else words
