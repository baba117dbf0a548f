"""Remove the sandboxes of runners that were killed."""

import fcntl
import os
import select
import shutil
import signal
import struct
import time
from contextlib import suppress
from pathlib import Path

from benchflow_contracts.errors import SandboxUnsupportedError
from benchflow_contracts.sandbox_record import ReapPolicy, SandboxRecord

from benchflow_sandbox_local.cgroup.group import remove_directories
from benchflow_sandbox_local.launcher_process.layers.claim import sweep
from benchflow_sandbox_local.launcher_process.processes import thaw
from benchflow_sandbox_local.unisolated.init import kill_marked

from .labels import Label, LabelStore

GROUP_PREFIX = "benchflow-"
_END_SECONDS = 20.0
"""A launcher needs less time to end the sandboxes of its runner."""
_FLOCK = "hhqqi"
"""`struct flock`: kind, whence, start, length, process."""

IMAGES = "live"
"""The directory of live images on disk, below the store."""


def reap(directory: Path, policy: ReapPolicy) -> list[SandboxRecord]:
    """Remove the sandboxes of dead owners that match `policy`; return their records.

    A sandbox whose owner lives, or may live, is never removed. Live images do not have labels, so
    the live images of all dead owners are removed if `policy` covers dead owners at all.
    """
    store = LabelStore(directory / "boxes")
    removed: list[SandboxRecord] = []
    for label in store.all():
        record = label.record()
        if not record.wanted(policy, time.time()):
            continue
        if record.owner_alive is not False:
            raise SandboxUnsupportedError(
                f"cannot remove the overdue sandbox {record.id!r}: its runner may live",
                hint="end its runner; the sandboxes of a runner end with it",
            )
        if not policy.dry_run:
            if not _remove(label, store):
                continue
            store.remove(label.id)
        removed.append(record)
    if policy.dead_owners and not policy.dry_run:
        sweep(str(directory / IMAGES))
    return removed


def _end_launcher(lock: Path) -> bool:
    """Wait until a launcher without a runner has ended; kill it if it does not end in time.

    Return False if the launcher still lives, or is in a pid namespace that this process cannot see.
    """
    for _ in range(2):  # the second pass checks the result of a kill
        pid = _holder(lock)
        if not pid:
            break
        with suppress(ProcessLookupError):
            fd = os.pidfd_open(pid)
            try:
                # The process still has the lock, so `fd` refers to the launcher.
                if _holder(lock) == pid and not select.select([fd], [], [], _END_SECONDS)[0]:
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
            finally:
                os.close(fd)
    if _holder(lock) is not None:
        return False
    lock.unlink(missing_ok=True)
    return True


def _holder(lock: Path) -> int | None:
    """Return the process with a POSIX lock; 0 for an invisible one; `None` without a lock."""
    try:
        fd = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        answer = fcntl.fcntl(fd, fcntl.F_GETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, 0, 0, 0, 0))
    finally:
        os.close(fd)
    kind, _, _, _, pid = struct.unpack(_FLOCK, answer)
    return None if kind == fcntl.F_UNLCK else max(int(pid), 0)


def sweep_groups(directory: Path) -> None:
    """Remove the empty control groups of owners that died before they started a sandbox.

    This ends no process, so it is always allowed.
    """
    store = LabelStore(directory / "boxes")
    for label in store.all():
        if label.owner.alive is not False or label.launcher is None:
            continue
        if _holder(store.launcher_lock(label.launcher)) is not None:
            continue
        for path in _groups(label):
            with suppress(OSError):  # already removed, or not empty: `reap` removes it
                Path(path).rmdir()


def _groups(label: Label) -> tuple[str, ...]:
    return tuple(path for path in label.groups if path.endswith(f"/{GROUP_PREFIX}{label.id}"))


def _remove(label: Label, store: LabelStore) -> bool:
    """Remove the rest of a sandbox. Return False if its launcher cannot be ended from here."""
    if label.plain:
        kill_marked(label.id)
        shutil.rmtree(store.plain / label.id, ignore_errors=True)
    # Mounts, upper layers and network namespaces belong to the launcher's namespaces and end with
    # it. The kernel kills the sandbox's first process then, and so all other processes inside.
    if label.launcher is not None and not _end_launcher(store.launcher_lock(label.launcher)):
        return False
    thaw(groups := _groups(label))
    remove_directories(groups)
    return True
