"""Removing the sandboxes of runners that were killed."""

import os
import select
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

from benchflow_contracts.errors import SandboxUnsupportedError
from benchflow_contracts.sandbox_record import ReapPolicy, SandboxRecord
from benchflow_sandbox_core.owner import ProcessIdentity

from benchflow_sandbox_local.cgroup.group import remove_directories
from benchflow_sandbox_local.launcher_process.layers.claim import sweep
from benchflow_sandbox_local.launcher_process.processes import thaw
from benchflow_sandbox_local.unisolated.init import kill_marked

from .labels import Label, LabelStore

GROUP_PREFIX = "benchflow-"
_PATIENCE = 20.0
"""Seconds. A launcher needs less to end the sandboxes of its runner."""

IMAGES = "live"
"""The directory of live images on disk, below the store."""


def reap(directory: Path, policy: ReapPolicy) -> list[SandboxRecord]:
    """Remove the sandboxes of dead owners that match `policy`; return their records.

    A sandbox whose owner lives, or may live, is never touched. The images of dead
    owners have no label and are removed with any sandbox.
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
                hint=f"end process {label.owner.pid} of that host; its sandboxes end with it",
            )
        if not policy.dry_run:
            _remove(label, store)
            store.remove(label.id)
        removed.append(record)
    if policy.dead_owners and not policy.dry_run:
        sweep(str(directory / IMAGES))
    return removed


def _end(launcher: ProcessIdentity) -> None:
    """Wait until a launcher without a runner is dead. It ends by itself, or is killed."""
    if not launcher.alive:
        return  # its number may be a thread's by now, and no descriptor can be had of that
    with suppress(ProcessLookupError):
        fd = os.pidfd_open(launcher.pid)
        try:
            if launcher.alive and not select.select([fd], [], [], _PATIENCE)[0]:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        finally:
            os.close(fd)


def sweep_groups(directory: Path) -> None:
    """Remove the empty control groups of dead owners: killed before a sandbox was in them.

    This never touches a process, so it is always allowed.
    """
    for label in LabelStore(directory / "boxes").all():
        if label.owner.alive is not False or label.launcher.alive is not False:
            continue
        for path in _groups(label):
            with suppress(OSError):  # gone, or not empty: that is for `reap`
                Path(path).rmdir()


def _groups(label: Label) -> tuple[str, ...]:
    return tuple(path for path in label.groups if path.endswith(f"/{GROUP_PREFIX}{label.id}"))


def _remove(label: Label, store: LabelStore) -> None:
    if label.plain:
        kill_marked(label.id)
        shutil.rmtree(store.plain / label.id, ignore_errors=True)
    # Mounts, upper layers and network namespaces live in the launcher's namespaces and go
    # with it; the kernel kills the sandbox's first process, and with it all that can move.
    _end(label.launcher)
    thaw(groups := _groups(label))
    remove_directories(groups)
