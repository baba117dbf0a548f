"""The owner of sandboxes on this machine: a runner process that holds a lock while it lives.

Each runner process has a random id, and an exclusive `flock` on a file with the id as its name, in
one directory per user. The kernel releases the lock when the process ends, however it ends. The
lock is visible in every container and pid namespace that shares the directory.

A program that the runner starts does not inherit the lock. A forked child of Python does not keep
the lock either, and becomes an owner of its own. If foreign code forks a child without `exec`, the
child keeps the lock, so its parent counts as alive until the child ends.

On another machine, a lock proves nothing. If the machines share the directory, the time of
modification of the file is the owner's heartbeat there.

Anyone who can change the labels of an engine can name any owner in them, so a label is as
trustworthy as its engine. A false owner concerns only the resource that has the label.
"""

import fcntl
import os
import re
import secrets
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path

from benchflow_contracts.cause import host_error
from benchflow_contracts.sandbox_record import HEARTBEAT_EXPIRY_SEC, HEARTBEAT_SEC, Owner

from .paths import state_directory

_MACHINE_ID = Path("/etc/machine-id")


class HostOwner(Owner):
    """A runner process on this machine, or on another one that shares an engine or a store."""

    machine: str
    """The machine's id; empty if the machine does not have one."""
    boot: str
    directory: str
    """The device and the inode of the directory of locks. They are valid during one boot."""

    @property
    def alive(self) -> bool | None:
        """Whether the process runs; `None` if neither a lock nor a heartbeat shows it."""
        boot = _boot()
        if self.boot != boot and self.machine and self.machine == _machine():
            return False  # an earlier boot of this machine
        for locks in _lock_directories():
            if self.boot == boot and self.directory == _inode(locks):
                return _is_locked(locks / self.id)
        return False if self._has_expired() else None

    def _has_expired(self) -> bool:
        for locks in _lock_directories():
            with suppress(OSError):  # the machines do not share this directory
                renewed_at = (locks / self.id).stat().st_mtime
                return Owner(id=self.id, renewed_at=renewed_at).is_expired(_file_system_time(locks))
        return self.is_expired(time.time())


class _OwnerLock:
    """The lock of this process in one directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = directory.lstat()
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o077:
            raise PermissionError(f"{str(directory)!r} is not accessible to this user alone")
        _sweep(directory)
        self.owner = HostOwner(machine=_machine(), boot=_boot(), directory=_inode(directory))
        self._path = directory / self.owner.id
        fresh = directory / f".{self.owner.id}"
        self.fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The file gets its name after its lock, so that no reader finds it without a lock.
        fresh.rename(self._path)
        threading.Thread(target=self._renew, name="benchflow-owner", daemon=True).start()

    def _renew(self) -> None:
        while True:
            time.sleep(HEARTBEAT_SEC)
            with suppress(OSError):
                os.utime(self._path)


_locks: dict[Path, _OwnerLock] = {}
_mutex = threading.Lock()


def _close_in_child() -> None:
    """Close the descriptors in a forked child, which shares the locks of its parent."""
    for lock in _locks.values():
        os.close(lock.fd)
    _locks.clear()
    _mutex.release()


os.register_at_fork(
    before=_mutex.acquire, after_in_parent=_mutex.release, after_in_child=_close_in_child
)


def current_owner() -> HostOwner:
    """Return this process as an owner. The first call takes its lock.

    Raises:
        HostError: The lock cannot be taken, or other users can change its directory.
    """
    *others, last = _lock_directories()
    with _mutex:
        for directory in others:
            with suppress(OSError):
                return _lock_in(directory).owner
        try:
            return _lock_in(last).owner
        except OSError as error:
            raise host_error(f"lock a file in {str(last)!r}", error) from error


def _lock_in(directory: Path) -> _OwnerLock:
    if directory not in _locks:
        _locks[directory] = _OwnerLock(directory)
    return _locks[directory]


def _lock_directories() -> list[Path]:
    """Return the directory of locks, and the one of users who cannot write a state directory."""
    own = Path(f"/tmp/benchflow-owners-{os.geteuid()}")  # noqa: S108
    try:
        return [state_directory() / "owners", own]
    except RuntimeError:  # the user does not have a home directory
        return [own]


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False  # swept: its owner had ended
    try:
        # Shared, so that two readers at one time do not take each other for the owner.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _sweep(directory: Path) -> None:
    """Remove the files of dead owners. A file of another machine stays until it expires."""
    now = _file_system_time(directory)
    for path in directory.iterdir():
        with suppress(OSError):
            old = path.stat().st_mtime + HEARTBEAT_EXPIRY_SEC < now
            if old and not _is_locked(path):
                path.unlink()


def _file_system_time(directory: Path) -> float:
    """Return the time of the clock that stamps heartbeats: on NFS, the clock of the server."""
    probe = directory / f".now.{secrets.token_hex(4)}"
    try:
        probe.touch()
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def _inode(directory: Path) -> str:
    try:
        info = directory.stat()
    except OSError:
        return ""  # no owner has this
    return f"{info.st_dev}:{info.st_ino}"


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _machine() -> str:
    try:
        text = _MACHINE_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    # systemd writes "uninitialized" there until the first boot of an image is complete.
    return text if re.fullmatch("[0-9a-f]{32}", text) else ""
