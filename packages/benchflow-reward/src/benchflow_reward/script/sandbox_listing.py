"""Find the changes of a sandbox by listings made in it, if its host does not track them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchflow_contracts import FileChanges, RewardError, Sandbox

from .tamper_rules import Change

MAX_DIGESTS = 5000

_TIMEOUT_SEC = 120
_KINDS: tuple[Change, ...] = ("added", "removed", "changed")
_FORMAT = r"%y\t%m\t%U:%G\t%s\t%T@\t%C@\t%l\t%p\0"

_LIST = f"""set -u
shown() {{ find -P "$@" -printf '{_FORMAT}' 2>/dev/null; }}
list() {{ for d in "$@"; do [ ! -e "$d" ] || shown "$d" -xdev; done; }}
list /tests /logs/verifier /evidence /etc
list /bin /sbin /usr/bin /usr/sbin /usr/local/bin /usr/local/sbin
for d in /lib /lib64 /usr/lib /usr/local/lib; do
  [ ! -e "$d" ] || shown "$d/" -xdev -maxdepth 5 \\( -name '*.pth' -o -name 'sitecustomize*' \\
    -o -name 'usercustomize*' -o -name 'ld-*' -o -name 'libc.so*' -o -name 'libc-*' \\)
done
for d in /usr/lib/python3* /usr/local/lib/python3*; do
  [ ! -e "$d" ] || shown "$d" -xdev -maxdepth 2
done
echo
"""

_LIST_STEERING = f"""set -u
for d in "$@"; do
  [ ! -e "$d" ] || find -P "$d" -xdev -maxdepth 8 -type d -name node_modules -prune -o \\
    \\( -name '*.py' -o -name '*.pth' -o -name '*.ini' -o -name '*.cfg' -o -name '.*rc' \\
    -o -name '.*profile' -o -name '.*env' -o -name '.gitconfig' -o -path '*/.git/hooks/*' \\
    -o -type l \\) \\
    -printf '{_FORMAT}' 2>/dev/null
done
echo
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file, link or directory. Times are as find(1) prints them."""

    kind: str
    mode: str
    owner: str
    size: str
    modified: str
    changed: str
    target: str

    def same_shape(self, other: "Entry") -> bool:
        """Whether kind, mode, owner, target and (for files) size are equal."""
        left = (self.kind, self.mode, self.owner, self.target)
        right = (other.kind, other.mode, other.owner, other.target)
        return left == right and (self.kind != "f" or self.size == other.size)

    def same_times(self, other: "Entry") -> bool:
        """Whether neither content nor inode changed since both were one file."""
        return (self.modified, self.changed) == (other.modified, other.changed)


async def compare_sandboxes(
    twin: Sandbox, pristine: Sandbox, agent_dirs: Sequence[str]
) -> FileChanges:
    """Compare a twin with a pristine sandbox of the same image, files and setup.

    Compared are the grader's, the system's and the interpreters' start-up paths, and what
    may steer a shell, an interpreter or a test runner below `agent_dirs`. The programs that
    list are the twin's, so it holds against an unprivileged agent and not against root.

    Raises:
        RewardError: The listings are not whole.
    """
    found: dict[str, Change] = {}
    links: dict[str, str] = {}
    for script, args in ((_LIST, ()), (_LIST_STEERING, agent_dirs)):
        ours, theirs = [await _list(sandbox, script, args) for sandbox in (twin, pristine)]
        found |= await _changes(twin, pristine, ours, theirs)
        links |= {p: e.target for p, e in ours.items() if e.kind == "l" and p in found}
    kinds = {kind: tuple(p for p in sorted(found) if found[p] == kind) for kind in _KINDS}
    return FileChanges(**kinds, links=links)


async def _list(sandbox: Sandbox, script: str, args: Sequence[str]) -> dict[str, Entry]:
    cmd = ["/bin/sh", "-c", script, "sh", *args]
    result = await sandbox.exec(cmd, user="root", cwd="/", timeout=_TIMEOUT_SEC)
    if not result.ok or result.stdout_dropped or not result.stdout.endswith("\n"):
        raise RewardError("the integrity listing is not complete")
    entries: dict[str, Entry] = {}
    for record in result.stdout.split("\0")[:-1]:
        fields = record.split("\t", 7)
        if len(fields) != 8:
            raise RewardError("the integrity listing is malformed")
        *values, path = fields
        entries[path] = Entry(*values)
    return entries


async def _digests(sandbox: Sandbox, paths: Iterable[str]) -> dict[str, str]:
    """Return sha256 digests by path, of what can be read."""
    ordered = sorted(paths)
    if not ordered:
        return {}
    names = b"".join(path.encode("utf-8", "surrogateescape") + b"\0" for path in ordered)
    result = await sandbox.exec(
        ["/bin/sh", "-c", "xargs -0 sha256sum -z -- 2>/dev/null; echo"],
        user="root",
        cwd="/",
        timeout=_TIMEOUT_SEC,
        stdin=names,
    )
    lines = [line.split("  ", 1) for line in result.stdout.split("\0")[:-1]]
    return {line[1]: line[0] for line in lines if len(line) == 2}


async def _changes(
    twin: Sandbox, pristine: Sandbox, ours: Mapping[str, Entry], theirs: Mapping[str, Entry]
) -> dict[str, Change]:
    found: dict[str, Change] = dict.fromkeys(ours.keys() - theirs.keys(), "added")
    found |= dict.fromkeys(theirs.keys() - ours.keys(), "removed")
    run_both = ours.keys() & theirs.keys()
    reshaped = {path for path in run_both if not ours[path].same_shape(theirs[path])}
    touched = {
        path
        for path in run_both - reshaped
        if ours[path].kind == "f" and not ours[path].same_times(theirs[path])
    }
    if len(touched) > MAX_DIGESTS:
        raise RewardError(f"{len(touched)} files need a digest, more than {MAX_DIGESTS}")
    left, right = await _digests(twin, touched), await _digests(pristine, touched)
    reshaped |= {path for path in touched if left.get(path) != right.get(path)}
    for path in reshaped:
        found[path] = "changed"
    return found
