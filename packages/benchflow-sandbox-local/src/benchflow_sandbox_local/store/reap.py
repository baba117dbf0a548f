"""Removing what a killed runner left behind."""

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

from benchflow_contracts.sandbox import ReapPolicy, SandboxRecord

from benchflow_sandbox_local.box.claim import sweep
from benchflow_sandbox_local.cgroup.group import remove_directories
from benchflow_sandbox_local.unisolated.plain_init import kill_marked

from .labels import Label, LabelStore

GROUP_PREFIX = "benchflow-"


IMAGES = "live"
"""Where in the store live images on disk are."""


def reap(directory: Path, policy: ReapPolicy) -> list[SandboxRecord]:
    """Remove the boxes of dead owners that match `policy`; return their records.

    A box whose owner lives, or cannot be judged, is never touched. The images of dead
    owners have no label and go with any of them.
    """
    store = LabelStore(directory / "boxes")
    removed: list[SandboxRecord] = []
    for label in store.all():
        if label.owner.alive or not policy.dead_owners:
            continue
        if not policy.labels.items() <= label.labels.items():
            continue
        if not policy.dry_run:
            _remove(label, store)
            store.remove(label.id)
        removed.append(label.record())
    if policy.dead_owners and not policy.dry_run:
        sweep(str(directory / IMAGES))
    return removed


def _remove(label: Label, store: LabelStore) -> None:
    if label.plain:
        kill_marked(label.id)
        shutil.rmtree(store.plain / label.id, ignore_errors=True)
    # Mounts, upper layers and network namespaces live in the launcher's namespaces
    # and went with it; the kernel killed the box's first process, and with it all.
    if label.launcher.alive:
        with suppress(ProcessLookupError):
            os.kill(label.launcher.pid, signal.SIGKILL)
    ours = tuple(path for path in label.groups if path.endswith(f"/{GROUP_PREFIX}{label.id}"))
    for path in ours:
        # A frozen process cannot die before it is thawed.
        for name, value in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
            with suppress(OSError):
                fd = os.open(f"{path}/{name}", os.O_WRONLY)
                os.write(fd, value.encode())
                os.close(fd)
    remove_directories(ours)
