"""Find the further names that links of the agent give to changed files."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from benchflow_contracts import RewardError, Sandbox

from .tamper_rules import Change, TamperRules

_MAX_NAMES = 50_000
"""The most names. A link that was not followed counts as tampering."""
_BATCH = 1000
_TIMEOUT_SEC = 60

_REAL = r"""for l in "$@"; do
  cd / && cd -P -- "$l" 2>/dev/null || continue
  a=$PWD; cd /proc && cd -P -- "$l" && [ "$PWD" = "$a" ] || a=
  printf '%s\0%s\0' "$l" "$a"
done
printf 'end\0'"""
"""Uses shell built-ins alone. A link through `/proc/self` has another target in each process."""


async def find_linked_names(
    twin: Sandbox, changes: Mapping[str, Change], links: Mapping[str, str], rules: TamperRules
) -> tuple[dict[str, Change], set[str]]:
    """Return the names that changed files have through links to directories, and dark links.

    Of links, those that `rules` look through. A dark one leads nobody knows where, or so many
    files are behind it that nobody looked.

    Raises:
        RewardError: The twin does not say where the links lead.
    """
    there = sorted(path for path, change in changes.items() if change != "removed")
    names: dict[str, Change] = {}
    dark: set[str] = set()
    todo = {link: frozenset[str]() for link in there if link in links and rules.looks_through(link)}
    while todo:
        if len(names) + len(todo) > _MAX_NAMES:
            return names, {*dark, *todo}
        leads, behind = await _directories(twin, list(todo)), dict[str, frozenset[str]]()
        for link, real in leads.items():
            if not _is_plain(real):
                dark.add(link)
            elif real not in todo[link]:
                found = _below(there, real)
                if len(names) + len(found) > _MAX_NAMES:
                    return names, {*dark, *todo}
                below = {link + path[len(real.rstrip("/")) :]: path for path in found}
                names |= dict.fromkeys(below, "added")
                seen = todo[link] | {real}
                behind |= {name: seen for name, path in below.items() if path in links}
        todo = behind
    return names, dark


async def _directories(twin: Sandbox, links: Sequence[str]) -> dict[str, str]:
    """Return the targets of links to directories; "" if it differs between processes."""
    found: dict[str, str] = {}
    for start in range(0, len(links), _BATCH):
        cmd = ["/bin/sh", "-c", _REAL, "sh", *links[start : start + _BATCH]]
        done = await twin.exec(cmd, user="root", cwd="/", timeout=_TIMEOUT_SEC)
        told = done.stdout.split("\0")
        if not done.ok or done.stdout_dropped or told[-2:] != ["end", ""] or len(told) % 2:
            raise RewardError(
                f"where links lead in a twin cannot be told: {done.stderr[-300:]}",
                caused_by="inside",
            )
        found |= dict(zip(told[:-2:2], told[1:-2:2], strict=True))
    return found


def _is_plain(path: str) -> bool:
    """Whether the name is the same among the changes, where non-UTF-8 bytes are escaped."""
    return path.startswith("/") and path.isprintable() and not {"\\", "\ufffd"} & {*path}


def _below(ordered: Sequence[str], place: str) -> Sequence[str]:
    start = f"{place.rstrip('/')}/"
    return ordered[bisect_left(ordered, start) : bisect_left(ordered, start[:-1] + "0")]
