"""Removing the sandboxes of runners that were killed."""

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
_PATIENCE = 20.0
"""Seconds. A launcher needs less to end the sandboxes of its runner."""
_FLOCK = "hhqqi"
"""`struct flock`: kind, whence, start, length, process."""

IMAGES = "live"
"""The directory of live images on disk, below the store."""


def reap(directory: Path, policy: ReapPolicy) -> list[SandboxRecord]:
    """Remove the sandboxes of dead owners that match `policy`; return their records.

    A sandbox whose owner lives, or may live, is never touched. The live images of dead owners do
    not have labels, so they are removed whatever `policy` selects.
    """
    store = LabelStore(directory / "boxes")
    removed: list[SandboxRecord] = []
    for label in store.all():
        record = label.record()
        if not record.wanted(policy, time.time()):
            continue
        if record.owner_alive is not False:
            raise SandboxUnsupportedError(
                f"sandbox {record.id!r} is overdue, and no local sandbox can be taken from its"
                " runner, which may live",
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


def _end(lock: Path) -> bool:
    """Wait until a launcher without a runner is dead. It ends by itself, or is killed.

    Return False if it still lives, or is in a pid namespace that this process does not see.
    """
    for _ in range(2):  # the second time after a kill
        pid = _holder(lock)
        if not pid:
            break
        with suppress(ProcessLookupError):
            fd = os.pidfd_open(pid)
            try:
                # The kernel names the holder, so it was the launcher that `fd` refers to.
                if _holder(lock) == pid and not select.select([fd], [], [], _PATIENCE)[0]:
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
            finally:
                os.close(fd)
    if _holder(lock) is not None:
        return False
    lock.unlink(missing_ok=True)
    return True


def _holder(lock: Path) -> int | None:
    """Return the process that holds a POSIX lock; 0 if it is not visible here; `None` if free."""
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
    """Remove the empty control groups of dead owners: killed before a sandbox was in them.

    This never touches a process, so it is always allowed.
    """
    store = LabelStore(directory / "boxes")
    for label in store.all():
        if label.owner.alive is not False or label.launcher is None:
            continue
        if _holder(store.launcher_lock(label.launcher)) is not None:
            continue
        for path in _groups(label):
            with suppress(OSError):  # gone, or not empty: that is for `reap`
                Path(path).rmdir()


def _groups(label: Label) -> tuple[str, ...]:
    return tuple(path for path in label.groups if path.endswith(f"/{GROUP_PREFIX}{label.id}"))


def _remove(label: Label, store: LabelStore) -> bool:
    """Remove what is left of a sandbox. Return False while its launcher cannot be ended here."""
    if label.plain:
        kill_marked(label.id)
        shutil.rmtree(store.plain / label.id, ignore_errors=True)
    # Mounts, upper layers and network namespaces live in the launcher's namespaces and go
    # with it; the kernel kills the sandbox's first process, and with it all that can move.
    if label.launcher is not None and not _end(store.launcher_lock(label.launcher)):
        return False
    thaw(groups := _groups(label))
    remove_directories(groups)
    return True
