"""Where changed links lead, as the kernel follows them."""

import re
from collections.abc import Mapping

_LINKS = 40
_OF_A_PROCESS = re.compile(r"/proc/(self|thread-self|\d+)(?=/|$)(?!/fd/[12]$)")
"""Each process sees its own files there. Logs may lead to the output of a process."""


def resolved(path: str, links: Mapping[str, str]) -> str | None:
    """Return where a link leads in the end, as far as changed links lead; `None` for no link.

    A path below a process's directory in `/proc` is returned as soon as it is reached.
    """
    if path not in links:
        return None
    at, todo, followed = "", path.split("/"), 0
    while todo:
        part = todo.pop(0)
        if part == "..":
            at = at.rpartition("/")[0]
        elif part not in {"", "."}:
            at = f"{at}/{part}"
            at = "/proc/self" if at == "/dev/fd" and todo else at
        rest = "/".join([at, *todo])
        if _OF_A_PROCESS.match(at):
            return rest
        target = links.get(at)
        if target is not None and followed < _LINKS:
            followed += 1
            at = "" if target.startswith("/") else at.rpartition("/")[0]
            todo = [*target.split("/"), *todo]
    return at or "/"


def is_of_a_process(path: str) -> bool:
    """Whether each process finds something else at `path`, such as its own root directory."""
    return _OF_A_PROCESS.match(path) is not None
