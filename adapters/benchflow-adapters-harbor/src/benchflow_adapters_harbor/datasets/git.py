"""Trees of git repositories, fetched once and cached by commit."""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import mkdtemp
from typing import Final

from benchflow_contracts import TaskError

from benchflow_adapters_harbor.files import MAX_ENTRIES

REMOTE: Final = ("git", "http", "https", "ssh")
"""Protocols that a file from the network may name."""
LOCAL: Final = (*REMOTE, "file")
"""Protocols that the operator may name."""

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REF = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]*")
_SECONDS = 540


class GitTrees:
    """A cache of checked-out trees. Processes may share its directory.

    A cached tree has the content of its commit: git checks every object by its digest.
    No hook, submodule or helper program of a repository runs.
    """

    def __init__(self, cache: Path) -> None:
        self._cache = cache

    def resolve(self, url: str, ref: str | None, *, protocols: Sequence[str]) -> str:
        """Return the commit that `ref`, or the default branch, points to now.

        Raises:
            TaskError: The repository cannot be reached or does not have the ref.
        """
        if ref is not None and is_commit(ref):
            return ref
        if ref is not None and not _REF.fullmatch(ref):
            raise TaskError(f"{ref[:80]!r} is not a git ref", hint="name a branch, tag or commit")
        _check_url(url, protocols)
        names_asked = ("HEAD",) if ref is None else (ref, f"{ref}^{{}}")
        lines = _git("ls-remote", "--", url, *names_asked, protocols=protocols).splitlines()
        pairs = (line.partition("\t") for line in lines)
        found = {name: commit for commit, _, name in pairs}
        names = ("HEAD",) if ref is None else _spellings(ref)
        commit = next((found[name] for name in names if name in found), None)
        if commit is None or not is_commit(commit):
            raise TaskError(f"{url} has no ref {ref!r}", hint="name a branch, tag or commit")
        return commit

    def tree(self, url: str, commit: str, path: str, *, protocols: Sequence[str]) -> Path:
        """Return a directory with the content of `path` in `commit`. Fetch it if it is not cached.

        Raises:
            TaskError: The commit cannot be fetched, or does not have the directory.
        """
        inside = inner_path(path)
        if not is_commit(commit):
            raise TaskError(f"{commit[:80]!r} is not a commit", hint="40 or 64 hexadecimal digits")
        home = self._cache / "git" / _short(url)
        folder = home / "trees" / commit / _short(inside) / (PurePosixPath(inside).name or "tree")
        if folder.is_dir():
            return folder
        _check_url(url, protocols)
        home.mkdir(parents=True, exist_ok=True)
        with _locked(home / "lock"):
            if not folder.is_dir():
                self._fetch(home, url, commit, protocols)
                _check_out(home, f"{commit}:{inside}", folder, protocols)
        return folder

    def _fetch(self, home: Path, url: str, commit: str, protocols: Sequence[str]) -> None:
        store = home / "repo.git"
        if not (store / "benchflow-ready").exists():
            shutil.rmtree(store, ignore_errors=True)
            _git("init", "--quiet", "--bare", "--", str(store), protocols=protocols)
            _git("remote", "add", "origin", url, store=store, protocols=protocols)
            (store / "benchflow-ready").touch()
        how = ("--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules")
        filtered = ("--filter=blob:none", "origin", commit)
        _git("fetch", *how, *filtered, store=store, protocols=protocols)


def is_commit(text: str) -> bool:
    """Return whether `text` is the full name of a commit."""
    return _COMMIT.fullmatch(text) is not None


def inner_path(path: str) -> str:
    """Return a path below a repository's root in normal form. The root is the empty text.

    Raises:
        TaskError: The path is absolute or contains `..`.
    """
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or "\0" in path or ":" in path:
        raise TaskError(
            f"{path[:80]!r} is not a path below a repository", hint="give a relative path"
        )
    return "" if str(pure) == "." else str(pure)


def _check_url(url: str, protocols: Sequence[str]) -> None:
    scheme = url.partition("://")[0] if "://" in url else "ssh"
    scp = re.fullmatch(r"[A-Za-z0-9._-]+@[A-Za-z0-9._-]+:[^:]+", url) is not None
    plain = url.isprintable() and " " not in url
    if not plain or scheme not in protocols or not ("://" in url or scp):
        raise TaskError(
            f"{url[:200]!r} is not a git URL that may be fetched here",
            hint=f"use one of the protocols {', '.join(protocols)}",
        )


def _spellings(ref: str) -> list[str]:
    tags = [f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}"]
    return [f"{ref}^{{}}", ref, *tags, f"refs/heads/{ref}"]


def _check_out(home: Path, tree: str, folder: Path, protocols: Sequence[str]) -> None:
    store = home / "repo.git"
    _check_size(store, tree, protocols)
    stage = Path(mkdtemp(prefix="stage-", dir=home))
    try:
        files = stage / "files"
        files.mkdir()
        # Reading one tree into an empty index and directory fetches all blobs in one batch.
        _git(
            *(f"--work-tree={files}", "read-tree", "-m", "-u", tree),
            store=store,
            index=stage / "index",
            protocols=protocols,
        )
        folder.parent.mkdir(parents=True, exist_ok=True)
        files.rename(folder)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _check_size(store: Path, tree: str, protocols: Sequence[str]) -> None:
    """Count the entries before the check-out, because trees can share subtrees."""
    argv = ["git", f"--git-dir={store}", "ls-tree", "-r", "-z", "--name-only", tree]
    process = subprocess.Popen(
        argv,
        env=_environment(protocols),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    entries = 0
    with process:
        assert process.stdout is not None
        while entries <= MAX_ENTRIES and (block := process.stdout.read(1 << 16)):
            entries += block.count(b"\0")
        if entries > MAX_ENTRIES:
            process.kill()
    if entries > MAX_ENTRIES:
        raise TaskError(f"{tree} has more than {MAX_ENTRIES} files", hint="name a part of it")
    if process.returncode:
        raise TaskError(f"there is no directory {tree!r}", hint="see the repository at that commit")


def _git(
    *args: str, protocols: Sequence[str], store: Path | None = None, index: Path | None = None
) -> str:
    where = [] if store is None else [f"--git-dir={store}"]
    env = _environment(protocols)
    if index is not None:
        env["GIT_INDEX_FILE"] = str(index)
    # A repository must not run a program: no hook and no transport helper.
    safe = ["-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "gc.auto=0"]
    try:
        done = subprocess.run(
            ["git", *safe, *where, *args],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_SECONDS,
        )
    except FileNotFoundError:
        raise TaskError("git is not installed", hint="install git") from None
    except subprocess.TimeoutExpired:
        raise TaskError(
            f"git took more than {_SECONDS} s", hint="try again", retryable=True
        ) from None
    if done.returncode:
        raise TaskError(
            f"git failed: {_reason(done.stderr.decode(errors='replace'))[:300]}",
            hint="check the URL, the commit and your access",
            retryable=True,
        )
    return done.stdout.decode(errors="replace")


def _reason(stderr: str) -> str:
    """Return the first reason that git gives, without the advice after it."""
    lines = stderr.strip().splitlines() or ["no reason given"]
    return next((line for line in lines if line.startswith(("fatal: ", "error: "))), lines[-1])


def _environment(protocols: Sequence[str]) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    own = {
        "GIT_ALLOW_PROTOCOL": ":".join(protocols),
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
    return env | own


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@contextmanager
def _locked(path: Path) -> Generator[None]:
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
