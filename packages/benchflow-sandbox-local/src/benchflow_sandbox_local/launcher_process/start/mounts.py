"""The mounts inside a sandbox: proc without dangerous files, devices, and bundles."""

import os
import stat
from typing import Any

from benchflow_sandbox_local.launcher_process import syscalls
from benchflow_sandbox_local.launcher_process.paths import make_directory, make_file
from benchflow_sandbox_local.launcher_process.syscalls import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    MS_REMOUNT,
)

_PROC_READ_ONLY = ("sys", "irq", "bus", "fs", "acpi", "scsi", "asound", "tty", "driver")
_PROC_HIDDEN = (
    "kcore",
    "keys",
    "key-users",
    "kmsg",
    "kallsyms",
    "kpagecount",
    "kpageflags",
    "kpagecgroup",
    "latency_stats",
    "sched_debug",
    "sysrq-trigger",
    "timer_list",
    "timer_stats",
    "vmallocinfo",
)
_HARDENED = MS_NOSUID | MS_NODEV | MS_NOEXEC


def mount_proc(root: int) -> None:
    """Mount the proc of this pid namespace; protect and hide files that concern the host."""
    target = make_directory(root, "proc")
    syscalls.mount("proc", f"/proc/self/fd/{target}", "proc", _HARDENED)
    os.close(target)
    proc = make_directory(root, "proc")
    try:
        base = f"/proc/self/fd/{proc}"
        for name in _PROC_READ_ONLY:
            _protect(base, name)
        null = make_file(root, "/dev/null")
        for name in _PROC_HIDDEN:
            if os.path.lexists(f"{base}/{name}"):
                syscalls.mount(f"/proc/self/fd/{null}", f"{base}/{name}", "", MS_BIND)
        os.close(null)
    finally:
        os.close(proc)


def _protect(base: str, name: str) -> None:
    path = f"{base}/{name}"
    if os.path.lexists(path):
        syscalls.mount(path, path, "", MS_BIND)
        syscalls.mount("", path, "", MS_BIND | MS_REMOUNT | MS_RDONLY | _HARDENED)


def mount_devices(root: int, *, bind: bool) -> None:
    """Mount devpts. With `bind`, also bind the host's device nodes."""
    pts = make_directory(root, "dev/pts")
    options = "newinstance,ptmxmode=0666,mode=0620"
    flags = MS_NOSUID | MS_NOEXEC
    try:
        # gid 5 is tty on all distributions; a user namespace may not map it.
        syscalls.mount("devpts", f"/proc/self/fd/{pts}", "devpts", flags, f"{options},gid=5")
    except OSError:
        syscalls.mount("devpts", f"/proc/self/fd/{pts}", "devpts", flags, options)
    os.close(pts)
    if bind:
        for name in NODES:
            target = make_file(root, f"/dev/{name}")
            syscalls.mount(f"/dev/{name}", f"/proc/self/fd/{target}", "", MS_BIND)
            os.close(target)


NODES = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "tty": (5, 0),
}
"""Device nodes of a sandbox, with their major and minor numbers."""

LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
"""Links in /dev of a sandbox."""


def clone_sources(mounts: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """Copy the mounts of bundles while the host's root is still visible."""
    attributes = syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
    return [(syscalls.clone_mount(item["source"], attributes), item["target"]) for item in mounts]


def attach(root: int, mounts: list[tuple[int, str]]) -> None:
    """Attach the copies at their targets. Create missing targets."""
    for tree, path in mounts:
        is_directory = stat.S_ISDIR(os.fstat(tree).st_mode)
        target = make_directory(root, path) if is_directory else make_file(root, path)
        syscalls.attach_mount(tree, target)
        os.close(target)
        os.close(tree)
