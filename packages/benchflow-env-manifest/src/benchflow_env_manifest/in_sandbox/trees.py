"""Copy files and directories that other processes may be writing, and put them back.

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
    """Yield everything below `path`; no link is followed."""
    with os.scandir(path) as found:
        for entry in sorted(found, key=lambda each: each.name):
            yield entry
            if entry.is_dir(follow_symlinks=False):
                yield from entries(entry.path)


def look(paths: Sequence[str]) -> list[tuple[str | int, ...]]:
    """Return what changes whenever a file below `paths` is written, made or removed."""
    seen: list[tuple[str | int, ...]] = []
    for path in paths:
        if os.path.lexists(path):
            found = os.lstat(path)
            seen.append(_print_of(path, found))
            if stat.S_ISDIR(found.st_mode):
                each = (_print_of(e.path, e.stat(follow_symlinks=False)) for e in entries(path))
                seen.extend(each)
    return seen


def _print_of(path: str, found: os.stat_result) -> tuple[str | int, ...]:
    if not stat.S_ISDIR(found.st_mode) and not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{path} is neither a file nor a directory")
    times = (found.st_mtime_ns, found.st_ctime_ns)
    return (path, found.st_mode, found.st_uid, found.st_gid, found.st_ino, found.st_size, *times)


def copy(source: str, target: str) -> None:
    """Copy with owners, modes and times, sharing blocks where the file system can."""
    command = ["cp", "-a", "--reflink=auto", "-T", "--", source, target]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(done.stderr.strip()[-500:])


def capture(paths: Sequence[str], directory: str) -> bool:
    """Copy all paths into the new `directory`; `False` when they kept changing.

    Nothing was written between the two looks, so the copy is of one instant.
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
    """Copy once; `False` when something was written meanwhile."""
    try:
        before = look(paths)
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
        return look(paths) == before
    except FileNotFoundError:
        return False


def dress(paths: Sequence[str], directory: str) -> None:
    """Give a copy that lost them the owners and modes of the live files."""
    for index, path in enumerate(paths):
        root = f"{directory}/{index}"
        if os.path.lexists(root):
            below = [entry.path for entry in entries(root)] if Path(root).is_dir() else []
            for copied in (root, *below):
                live = path + copied.removeprefix(root)
                try:
                    found = os.lstat(live)
                except FileNotFoundError:
                    continue  # a writer that never stops has removed it since
                os.chown(copied, found.st_uid, found.st_gid, follow_symlinks=False)
                Path(copied).chmod(stat.S_IMODE(found.st_mode))


def restore(paths: Sequence[str], directory: str) -> None:
    """Put all copies in place of what is there, or none of them."""
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
    """Make `target` what `source` is, taking its files away.

    A directory that both have stays: an overlay cannot rename one of its lower layers,
    and whoever has it open sees the new entries.
    """
    if not os.path.lexists(source):
        _remove(target)
    elif _is_folder(source) and _is_folder(target):
        names = {each.name for folder in (source, target) for each in Path(folder).iterdir()}
        for name in names:
            move(f"{source}/{name}", f"{target}/{name}")
        found = os.lstat(source)
        os.chown(target, found.st_uid, found.st_gid, follow_symlinks=False)
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
        elif request["do"] == "dress":
            dress(paths, directory)
        else:
            restore(paths, directory)
    except (OSError, ValueError) as exc:
        answer["error"] = f"{type(exc).__name__}: {exc}"
    sys.stdout.write(json.dumps(answer))
