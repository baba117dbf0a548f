"""The files of a fake sandbox, in memory."""

import errno
import hashlib
import os
import posixpath
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from typing import Literal

from benchflow_contracts.changed_files import FileChanges

EntryKind = Literal["file", "dir", "link", "fifo"]
_LINK_DEPTH = 40


@dataclass(slots=True)
class FakeEntry:
    """One file, directory, symbolic link or named pipe."""

    kind: EntryKind
    owner: str
    mode: int
    data: bytes = b""
    target: str = ""


def _failure(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


class FakeFileSystem:
    """A tree of files by absolute path. Links resolve inside the tree, never on the host.

    Failures are the `OSError` of a real file system. `user="root"` may do everything.
    """

    def __init__(self) -> None:
        self._entries: dict[str, FakeEntry] = {"/": FakeEntry("dir", "root", 0o755)}
        self._baseline: dict[str, FakeEntry] | None = None

    def resolve(self, path: str, *, follow: bool = True) -> str:
        """Return `path` without links and dots. Without `follow`, the last link stays."""
        todo = [part for part in path.split("/") if part not in {"", "."}]
        done = ""
        hops = 0
        while todo:
            part = todo.pop(0)
            if part == "..":
                done = done.rpartition("/")[0]
                continue
            entry = self._entries.get(f"{done}/{part}")
            if entry is None or entry.kind != "link" or not (todo or follow):
                done = f"{done}/{part}"
                continue
            hops += 1
            if hops > _LINK_DEPTH:
                raise _failure(errno.ELOOP, path)
            if entry.target.startswith("/"):
                done = ""
            todo[:0] = [piece for piece in entry.target.split("/") if piece not in {"", "."}]
        return done or "/"

    def entry(self, path: str, *, follow: bool = True) -> FakeEntry | None:
        """Return the entry at `path`, or `None`."""
        return self._entries.get(self.resolve(path, follow=follow))

    def exists(self, path: str) -> bool:
        """Return whether `path` exists. A dangling link does not count."""
        return self.entry(path) is not None

    def allowed(self, path: str, user: str, bit: Literal[4, 2, 1]) -> bool:
        """Return whether `user` may read (4), write (2) or run (1) `path`."""
        entry = self.entry(path)
        if entry is None:
            return False
        if user == "root":
            return bit != 1 or entry.kind == "dir" or bool(entry.mode & 0o111)
        shift = 6 if entry.owner == user else 0
        return bool((entry.mode >> shift) & bit)

    def read(self, path: str, *, user: str = "root") -> bytes:
        """Return the content of a file."""
        entry = self.entry(path)
        if entry is None:
            raise _failure(errno.ENOENT, path)
        if entry.kind == "dir":
            raise _failure(errno.EISDIR, path)
        if not self.allowed(path, user, 4):
            raise _failure(errno.EACCES, path)
        return entry.data

    def write(
        self,
        path: str,
        data: bytes | str,
        *,
        user: str = "root",
        append: bool = False,
        mode: int = 0o644,
    ) -> None:
        """Write a file. A new file belongs to `user`, and its directory must exist."""
        content = data.encode() if isinstance(data, str) else data
        where = self.resolve(path)
        entry = self._entries.get(where)
        if entry is None:
            self._add(where, FakeEntry("file", user, mode, content), user)
        elif entry.kind == "dir":
            raise _failure(errno.EISDIR, path)
        elif not self.allowed(where, user, 2):
            raise _failure(errno.EACCES, path)
        else:
            entry.data = entry.data + content if append else content

    def put(self, path: str, data: bytes | str, *, user: str = "root", mode: int = 0o644) -> None:
        """Write a file as root, create its parents, and set owner and mode."""
        where = self.resolve(path)
        self.mkdir(posixpath.dirname(where), owner=user, parents=True)
        self.write(where, data)
        entry = self._entries[where]
        entry.owner, entry.mode = user, mode

    def mkdir(
        self,
        path: str,
        *,
        user: str = "root",
        owner: str | None = None,
        mode: int = 0o755,
        parents: bool = False,
    ) -> None:
        """Create a directory that belongs to `owner`. With `parents` it may exist."""
        where = self.resolve(path)
        found = self._entries.get(where)
        if found is not None:
            if parents and found.kind == "dir":
                return
            raise _failure(errno.EEXIST, path)
        if parents:
            above = posixpath.dirname(where)
            self.mkdir(above, user=user, owner=owner, mode=mode, parents=True)
        self._add(where, FakeEntry("dir", owner or user, mode), user)

    def link(self, target: str, path: str, *, user: str = "root") -> None:
        """Create a symbolic link at `path`."""
        where = self.resolve(path, follow=False)
        self._add(where, FakeEntry("link", user, 0o777, target=target), user)

    def fifo(self, path: str, *, user: str = "root") -> None:
        """Create a named pipe at `path`. It cannot be read."""
        self._add(self.resolve(path, follow=False), FakeEntry("fifo", user, 0o644), user)

    def remove(self, path: str, *, user: str = "root", recursive: bool = False) -> None:
        """Delete a file, or a directory with its contents."""
        where = self.resolve(path, follow=False)
        if where not in self._entries:
            raise _failure(errno.ENOENT, path)
        if not self.allowed(posixpath.dirname(where), user, 2):
            raise _failure(errno.EACCES, path)
        if self._entries[where].kind == "dir" and not recursive:
            raise _failure(errno.EISDIR, path)
        for name in [where, *self.below(where)]:
            del self._entries[name]

    def chmod(self, path: str, mode: int, *, user: str = "root") -> None:
        """Set the permission bits of `path`."""
        entry = self.entry(path)
        if entry is None:
            raise _failure(errno.ENOENT, path)
        if user not in {"root", entry.owner}:
            raise _failure(errno.EPERM, path)
        entry.mode = mode

    def chown(self, path: str, owner: str) -> None:
        """Change the owner of `path`."""
        entry = self.entry(path)
        if entry is None:
            raise _failure(errno.ENOENT, path)
        entry.owner = owner

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        prefix = self.resolve(path).rstrip("/") + "/"
        return sorted({p[len(prefix) :] for p in self.below(path) if "/" not in p[len(prefix) :]})

    def below(self, path: str) -> list[str]:
        """Return every path below a directory, parents first. Links are not followed."""
        prefix = self.resolve(path, follow=False).rstrip("/") + "/"
        return sorted(p for p in self._entries if p.startswith(prefix) and p != "/")

    def __iter__(self) -> Iterator[str]:
        """Iterate over every path, sorted."""
        return iter(sorted(self._entries))

    def copy(self) -> "FakeFileSystem":
        """Return an independent copy."""
        twin = FakeFileSystem()
        twin._entries = {path: copy(entry) for path, entry in self._entries.items()}
        twin._baseline = self._baseline
        return twin

    def set_baseline(self) -> None:
        """Store the current entries as the baseline of this tree and of its copies."""
        self._baseline = self.prints()

    def prints(self) -> dict[str, FakeEntry]:
        """Return a copy of the current entries."""
        return {path: copy(entry) for path, entry in self._entries.items()}

    def ignore_since(self, before: dict[str, FakeEntry]) -> None:
        """Add the changes since `before` to the baseline, except of paths that had changed."""
        baseline, now = dict(self._baseline or {}), self.prints()
        for path in before.keys() | now.keys():
            if before.get(path) != baseline.get(path) or now.get(path) == before.get(path):
                continue
            if path in now:
                baseline[path] = now[path]
            else:
                del baseline[path]
        self._baseline = baseline

    @property
    def has_baseline(self) -> bool:
        """Whether a baseline was set."""
        return self._baseline is not None

    def changed_files(self) -> FileChanges | None:
        """Return the changes since the baseline; `None` without a baseline."""
        if self._baseline is None:
            return None
        now, then = self._entries, self._baseline
        return FileChanges(
            added=tuple(sorted(now.keys() - then.keys())),
            removed=tuple(sorted(then.keys() - now.keys())),
            changed=tuple(sorted(p for p in now.keys() & then.keys() if now[p] != then[p])),
            links={p: e.target for p, e in now.items() if e.kind == "link" and e != then.get(p)},
        )

    @property
    def size(self) -> int:
        """The bytes of content of all files."""
        return sum(len(entry.data) for entry in self._entries.values())

    @property
    def digest(self) -> str:
        """A sha256 over every path, owner, mode and content."""
        total = hashlib.sha256()
        for path, entry in sorted(self._entries.items()):
            head = (path, entry.kind, entry.owner, entry.mode, entry.target, len(entry.data))
            total.update(repr(head).encode() + entry.data)
        return f"sha256:{total.hexdigest()}"

    def _add(self, where: str, entry: FakeEntry, user: str) -> None:
        above = posixpath.dirname(where)
        parent = self._entries.get(above)
        if where in self._entries:
            raise _failure(errno.EEXIST, where)
        if parent is None:
            raise _failure(errno.ENOENT, where)
        if parent.kind != "dir":
            raise _failure(errno.ENOTDIR, where)
        if not self.allowed(above, user, 2):
            raise _failure(errno.EACCES, where)
        self._entries[where] = entry
