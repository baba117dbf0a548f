"""Find the targets of the agent's links, and the further names that files get by links."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from posixpath import basename, dirname

from benchflow_contracts import FileChanges, RewardError, Sandbox

_BATCH = 500
_MAX_LINKS = 20_000
_MAX_NAMES = 64
"""Of one file."""
_TIMEOUT_SEC = 60

_LINKS = 40
_PROCESS_PATH = re.compile(r"/proc/(self|thread-self|\d+)(?=/|$)(?!/fd/[12]$)")
"""Each process sees its own files there. Logs may lead to the output of a process."""

_REAL = r"""while [ $# -gt 1 ]; do
  p=
  if cd / && cd -P -- "$1" 2>/dev/null; then
    p=${PWD%/}/$2
    [ ! -L "$p" ] || p=$(readlink -f -- "$p") || p=
  fi
  printf '%s\0' "$p"
  shift 2
done
printf 'end\0'"""
"""Uses shell built-ins, except for links to links. A replaced readlink is graded as tampering."""


@dataclass(frozen=True)
class Aliases:
    """The targets of the agent's links, with all further links followed."""

    leads: Mapping[str, str] = field(default_factory=dict[str, str])
    """The real target of each link, by the path of the link."""
    is_whole: bool = True
    """Whether all links are known."""

    @cached_property
    def _links(self) -> Mapping[str, Sequence[str]]:
        found: dict[str, list[str]] = {}
        for link, real in self.leads.items():
            found.setdefault(real, []).append(link)
        return found

    def is_reached(self, path: str) -> bool:
        """Whether a link leads to `path`, or to a directory that it is in."""
        return any(place in self._links for place in _places(path))

    def names(self, path: str) -> list[str]:
        """Return `path` and its other names."""
        names = {path: None}
        todo = [path]
        while todo and self._links:
            name = todo.pop()
            for place in _places(name):
                for link in self._links.get(place, ()):
                    other = link + name[len(place) :]
                    if other not in names and len(names) < _MAX_NAMES:
                        names[other] = None
                        todo.append(other)
        return list(names)


def _places(path: str) -> Iterator[str]:
    while len(path) > 1:
        yield path
        path = dirname(path)


async def find_aliases(sandbox: Sandbox, changes: FileChanges) -> Aliases:
    """Ask `sandbox` where the links among `changes` lead. A shell answers.

    Raises:
        RewardError: The answer is not whole.
    """
    links = sorted(changes.links.items())
    leads: dict[str, str] = {}
    for start in range(0, min(len(links), _MAX_LINKS), _BATCH):
        asked = links[start : min(start + _BATCH, _MAX_LINKS)]
        words = [word for link, target in asked for word in _split(link, target)]
        cmd = ["/bin/sh", "-c", _REAL, "sh", *words]
        done = await sandbox.exec(cmd, user="root", cwd="/", timeout=_TIMEOUT_SEC)
        told = done.stdout.split("\0")
        if done.stdout_dropped or told[-2:] != ["end", ""] or len(told) != len(asked) + 2:
            raise RewardError(
                f"where links lead in a twin cannot be told: {done.stderr[-300:]}",
                caused_by="inside",
            )
        leads |= {link: real for (link, _), real in zip(asked, told, strict=False) if real}
    return Aliases(leads, is_whole=len(links) <= _MAX_LINKS)


def _split(link: str, target: str) -> tuple[str, str]:
    """Return the directory and the name that a link leads to."""
    path = target if target.startswith("/") else f"{dirname(link)}/{target}"
    path = path.rstrip("/") or "/"
    if basename(path) in {"", ".", ".."}:
        return path, ""
    return dirname(path), basename(path)


def resolve_link(path: str, links: Mapping[str, str]) -> str | None:
    """Return the final target of a link, following changed links; `None` if `path` is not a link.

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
        if _PROCESS_PATH.match(at):
            return rest
        target = links.get(at)
        if target is not None and followed < _LINKS:
            followed += 1
            at = "" if target.startswith("/") else at.rpartition("/")[0]
            todo = [*target.split("/"), *todo]
    return at or "/"


def is_process_path(path: str) -> bool:
    """Whether `path` is another file for each process, such as its own root directory."""
    return _PROCESS_PATH.match(path) is not None
