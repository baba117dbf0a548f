"""Temporary directories that are recognised as left over after their process was killed.

The temporary directories of one process are in one directory, `bf-scratch-*`, with a file that the
process locks while it lives. The kernel releases the lock, however the process ends.

A program that the process starts does not inherit the lock. A forked child of Python does not keep
it either, and gets a directory of its own.
"""

import atexit
import fcntl
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "bf-scratch-"
_FRESH = "bf-new-"
_LOCK = ".lock"
_roots: dict[str, tuple[Path, int]] = {}
"""The directory of this process below each temporary directory, and the descriptor of its lock."""
_mutex = threading.Lock()


@contextmanager
def scratch_directory(purpose: str) -> Generator[Path]:
    """Yield a new private directory, which is deleted at the end.

    Raises:
        OSError: The directory cannot be created.
    """
    with tempfile.TemporaryDirectory(prefix=f"{purpose}-", dir=scratch_root()) as name:
        yield Path(name)


def scratch_root() -> Path:
    """Return the directory of this process, which is deleted when the process ends.

    Raises:
        OSError: The directory cannot be created.
    """
    place = tempfile.gettempdir()
    with _mutex:
        if place in _roots and not _roots[place][0].is_dir():
            os.close(_roots.pop(place)[1])
        if place not in _roots:
            _roots[place] = _create(place)
        return _roots[place][0]


def _create(place: str) -> tuple[Path, int]:
    # The directory gets its name after its lock, so that no reader finds it without a lock.
    fresh = Path(tempfile.mkdtemp(prefix=_FRESH, dir=place))
    try:
        fd = os.open(fresh / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return fresh.rename(fresh.with_name(fresh.name.replace(_FRESH, PREFIX, 1))), fd
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def remove_left_directories(*, dry_run: bool = False) -> list[Path]:
    """Delete the temporary directories that ended processes of this user left. Return their paths.

    With `dry_run`, delete nothing. Idempotent.

    Raises:
        OSError: A directory cannot be deleted. The others are deleted.
    """
    removed: list[Path] = []
    failure: OSError | None = None
    for root in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")):
        try:
            if not _is_left(root):
                continue
            found = sorted(path for path in root.iterdir() if path.name != _LOCK)
            if not dry_run:
                _remove(root)
            removed += found
        except OSError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return removed


def _is_left(root: Path) -> bool:
    try:
        info = root.lstat()
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
            return False
        fd = os.open(root / _LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return root.is_dir()  # its removal was cut short
    try:
        # Shared, so that two readers at one time do not take each other for the owner.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def _remove(root: Path) -> None:
    # An artifact of an agent may be a directory that not even its owner can enter.
    for directory, names, _ in os.walk(root):
        for path in (Path(directory, name) for name in names):
            if not path.is_symlink():
                path.chmod(0o700)
    with suppress(FileNotFoundError):  # another process deletes it, too
        shutil.rmtree(root)


def _close_in_child() -> None:
    """Close the descriptors in a forked child, which shares the locks of its parent."""
    for _, fd in _roots.values():
        os.close(fd)
    _roots.clear()
    _mutex.release()


def _remove_own() -> None:
    for root, _ in _roots.values():
        shutil.rmtree(root, ignore_errors=True)


os.register_at_fork(
    before=_mutex.acquire, after_in_parent=_mutex.release, after_in_child=_close_in_child
)
atexit.register(_remove_own)
