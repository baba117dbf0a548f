"""Copy and restore files and directories while other processes may write to them.

Runs inside the sandbox as root; `main` reads one JSON argument and prints one JSON line.
Standard library only.
"""

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_ATTEMPTS = 5


def entries(path: str) -> Iterator[os.DirEntry[str]]:
    """Yield every entry below `path`, without following links."""
    with os.scandir(path) as children:
        for entry in sorted(children, key=lambda child: child.name):
            yield entry
            if entry.is_dir(follow_symlinks=False):
                yield from entries(entry.path)


def fingerprint(paths: Sequence[str]) -> list[tuple[str | int, ...]]:
    """Return a value that differs after a file below `paths` is written, created or removed."""
    statuses: list[tuple[str | int, ...]] = []
    for path in paths:
        if os.path.lexists(path):
            status = os.lstat(path)
            statuses.append(_status_of(path, status))
            if stat.S_ISDIR(status.st_mode):
                below = (_status_of(e.path, e.stat(follow_symlinks=False)) for e in entries(path))
                statuses.extend(below)
    return statuses


def _status_of(path: str, status: os.stat_result) -> tuple[str | int, ...]:
    if not stat.S_ISDIR(status.st_mode) and not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path} is neither a file nor a directory")
    owner = (status.st_uid, status.st_gid)
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return (path, status.st_mode, *owner, status.st_ino, status.st_size, *times)


def copy(source: str, target: str) -> None:
    """Copy with owners, modes and times; share blocks if the file system can."""
    command = ["cp", "-a", "--reflink=auto", "-T", "--", source, target]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise OSError(result.stderr.strip()[-500:])


def capture(paths: Sequence[str], directory: str) -> bool:
    """Copy all paths into the new `directory`; return `False` if every attempt saw a change.

    The fingerprints before and after the copy are equal, so the copy is of one instant.
    """
    partial = Path(f"{directory}.partial")
    for _ in range(_ATTEMPTS):
        partial.mkdir(mode=0o700, parents=True)
        try:
            if _copied(paths, str(partial)):
                partial.rename(directory)
                return True
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return False


def _copied(paths: Sequence[str], directory: str) -> bool:
    """Copy once; return `False` if a file was changed meanwhile."""
    try:
        before = fingerprint(paths)
    except FileNotFoundError:
        return False
    try:
        for index, path in enumerate(paths):
            if os.path.lexists(path):
                copy(path, f"{directory}/{index}")
    except OSError:
        if _unchanged(paths, before):
            raise
        return False
    return _unchanged(paths, before)


def _unchanged(paths: Sequence[str], before: list[tuple[str | int, ...]]) -> bool:
    try:
        return fingerprint(paths) == before
    except FileNotFoundError:
        return False


def copy_owners(paths: Sequence[str], directory: str) -> None:
    """Set owners and modes of the live files on a copy that lost them."""
    for index, path in enumerate(paths):
        root = f"{directory}/{index}"
        if os.path.lexists(root):
            below = [entry.path for entry in entries(root)] if Path(root).is_dir() else []
            for copied in (root, *below):
                live = path + copied.removeprefix(root)
                try:
                    status = os.lstat(live)
                except FileNotFoundError:
                    continue  # a writer has removed it since the copy
                os.chown(copied, status.st_uid, status.st_gid, follow_symlinks=False)
                Path(copied).chmod(stat.S_IMODE(status.st_mode))


def restore(paths: Sequence[str], directory: str) -> None:
    """Replace all paths by their copies; if one fails, move the old files back."""
    fresh = [f"{path}.bf-new" for path in paths]
    old = [f"{path}.bf-old" for path in paths]
    try:
        for index, path in enumerate(paths):
            for source, target in ((f"{directory}/{index}", fresh[index]), (path, old[index])):
                _remove(target)
                if os.path.lexists(source):
                    copy(source, target)
        try:
            for index, path in enumerate(paths):
                move(fresh[index], path)
        except BaseException:
            for index, path in enumerate(paths):
                move(old[index], path)
            raise
    finally:
        for path in (*fresh, *old):
            _remove(path)


def move(source: str, target: str) -> None:
    """Move the files of `source` to `target` and remove other files there.

    A directory that both have stays, because an overlay cannot rename one of its lower layers,
    and a process that has it open sees the new entries.
    """
    if not os.path.lexists(source):
        _remove(target)
    elif _is_folder(source) and _is_folder(target):
        names = {child.name for folder in (source, target) for child in Path(folder).iterdir()}
        for name in names:
            move(f"{source}/{name}", f"{target}/{name}")
        status = os.lstat(source)
        os.chown(target, status.st_uid, status.st_gid, follow_symlinks=False)
        shutil.copystat(source, target, follow_symlinks=False)
    else:
        if _is_folder(source) or _is_folder(target):
            _remove(target)
        Path(source).rename(target)


def _is_folder(path: str) -> bool:
    return not Path(path).is_symlink() and Path(path).is_dir()


def _remove(path: str) -> None:
    if _is_folder(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        Path(path).unlink()


def main() -> None:
    """Run the request in the first argument; print its result as JSON."""
    request = json.loads(sys.argv[1])
    paths, directory = request["paths"], request["directory"]
    answer: dict[str, str] = {}
    try:
        if request["do"] == "capture":
            answer["still"] = "yes" if capture(paths, directory) else ""
        elif request["do"] == "copy_owners":
            copy_owners(paths, directory)
        else:
            restore(paths, directory)
    except (OSError, ValueError) as exc:
        answer["error"] = f"{type(exc).__name__}: {exc}"
    sys.stdout.write(json.dumps(answer))
