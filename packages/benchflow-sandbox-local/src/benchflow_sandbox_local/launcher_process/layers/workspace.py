# Raw names below roots of sandboxes: pathlib would add nothing here.
# ruff: noqa: PTH102, PTH103, PTH104, PTH106, PTH112
"""The launcher's private file systems: a tmpfs for each pool of layers, base layers, images."""

import errno
import os
import shutil
import time
from dataclasses import dataclass, field
from typing import Any

from benchflow_sandbox_local.launcher_process import syscalls

from . import hard_links, inode_pins, live_images, tree
from .claim import claim
from .digest import tree_digest, tree_traits
from .tree import LayerCopy

_BUSY_PAUSES = tuple(0.001 * 2**step for step in range(13))
"""Seconds between tries, 8 in all, while another process releases a lower directory."""

# xino gives all files one st_dev, and different numbers in different layers. nfs_export is needed
# to restore watches. A sandbox also works without the options that a kernel does not support.
_OPTION_SETS = ("index=on,nfs_export=on,xino=on", "index=on,nfs_export=on", "index=on", "")


@dataclass(slots=True)
class Workspace:
    """The files below `root`, which exist only in the launcher's mount namespace."""

    root: str
    rooted: bool
    """Whether the launcher is root of the host, and not only of a user namespace."""
    notes: dict[str, str] = field(default_factory=dict[str, str])
    _pools: dict[str, int] = field(default_factory=dict[str, int])
    _options: str | None = None
    _disk: tuple[str, int] | None = None
    """The claimed directory of live images on disk, with its lock; None for images in memory."""

    @property
    def opaque(self) -> str:
        """The attribute that marks an opaque directory, for the kind of overlay in use."""
        return "trusted.overlay.opaque" if self.rooted else "user.overlay.opaque"

    def prepare(self, budget: int, disk: str | None) -> None:
        """Hide the launcher's mounts from the host and mount the file systems.

        Live images use at most `budget` bytes of memory, or are below `disk` of the host.
        """
        syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
        syscalls.mount("benchflow", self.root, "tmpfs", syscalls.MS_NOSUID, "mode=0700")
        for name in ("base", "cache", "work", "images", "standby"):
            os.mkdir(f"{self.root}/{name}")
        if disk is not None:
            self._disk = claim(disk)
            syscalls.mount(self._disk[0], f"{self.root}/images", "", syscalls.MS_BIND)
            return
        options = f"size={min(budget, _half_of_memory())},mode=0700"
        syscalls.mount("benchflow", f"{self.root}/images", "tmpfs", syscalls.MS_NOSUID, options)

    def close(self) -> None:
        """Remove live images from the disk. All other files end with the launcher's mounts."""
        if self._disk is not None:
            shutil.rmtree(self._disk[0], ignore_errors=True)

    @property
    def cache(self) -> str:
        """The directory of the engine's cache of kernel features."""
        return f"{self.root}/cache"

    def work(self, box: str) -> str:
        """Return a directory for the engine that restores `box`."""
        os.makedirs(path := f"{self.root}/work/{box}", mode=0o700, exist_ok=True)
        return path

    def image(self, name: str) -> str:
        """Return the directory of a live image. A name with a slash is a path of the host."""
        return name if "/" in name else f"{self.root}/images/{name}"

    def image_staging(self, box: str) -> str:
        """Return the directory in which a gVisor sandbox writes its live images."""
        os.makedirs(path := f"{self.root}/images/staging-{box}", mode=0o700, exist_ok=True)
        return path

    def take_image(self, box: str, name: str) -> None:
        """Move the live image of a gVisor sandbox out of its staging directory."""
        os.rename(f"{self.image_staging(box)}/new", self.image(name))

    def image_bytes(self, name: str) -> int:
        """Return the size of a live image."""
        return live_images.size_of(self.image(name))

    def remove_image(self, name: str) -> None:
        """Delete a live image. Idempotent."""
        shutil.rmtree(self.image(name), ignore_errors=True)

    def base(self, name: str) -> str:
        """Create the directory of a base: a tmpfs of its own.

        So its files have the same numbers in every launcher, independent of other files.
        """
        os.mkdir(path := f"{self.root}/base/{name}", 0o755)
        syscalls.mount("benchflow", path, "tmpfs", syscalls.MS_NOSUID, "mode=0755")
        return path

    def pool(self, name: str, size: int) -> str:
        """Create the tmpfs of a pool, or set its limit to `size` bytes; return its directory."""
        path = f"{self.root}/{name}"
        if self._pools.get(name) == size:
            return path
        options = f"size={size},nr_inodes={max(4096, size // 4096)},mode=0700"
        if name in self._pools:
            flags = syscalls.MS_REMOUNT | syscalls.MS_NOSUID
            try:
                syscalls.mount("benchflow", path, "tmpfs", flags, options)
            except OSError:
                if size > self._pools[name]:
                    raise
                return path  # more bytes are in use than the new limit: the old limit stays
        else:
            os.mkdir(path)
            syscalls.mount("benchflow", path, "tmpfs", syscalls.MS_NOSUID, options)
            # Created early, because removing trees from a full tmpfs needs it.
            os.mkdir(f"{path}/trash")
        self._pools[name] = size
        return path

    def drop_pool(self, name: str) -> None:
        """Unmount the tmpfs of a pool, with all of its files."""
        if self._pools.pop(name, None) is not None:
            syscalls.umount(f"{self.root}/{name}")
            os.rmdir(f"{self.root}/{name}")

    def mount_root(self, pool: str, box: str, lowers: list[str]) -> str:
        """Mount a new overlay for `box`; return its mount point."""
        base = f"{self.root}/{pool}"
        for name in ("u", "w", "m"):
            os.mkdir(f"{base}/{name}-{box}", 0o755)
        # Names relative to the pool are short, so that many layers fit into the mount options.
        os.chdir(base)
        where = f"upperdir=u-{box},workdir=w-{box}"
        stack = ":".join(_relative(lower, base) for lower in lowers)
        try:
            self._mount_overlay(f"m-{box}", f"lowerdir={stack},{where}")
        except OSError:
            self.remove_box(pool, box)
            raise
        finally:
            os.chdir("/")
        return f"{base}/m-{box}"

    def _mount_overlay(self, target: str, data: str) -> None:
        extra = () if self.rooted else ("userxattr",)
        candidates = _OPTION_SETS if self._options is None else (self._options,)
        for options in candidates:
            joined = ",".join(part for part in (data, options, *extra) if part)
            try:
                _mount_when_free(target, joined)
            except OSError as error:
                if options == candidates[-1] or error.errno == errno.EBUSY:
                    raise
                self.notes["overlay"] = f"the kernel refused {options!r}: {error}"
            else:
                self._options = options
                return

    def unmount_root(self, pool: str, box: str) -> None:
        """Unmount a sandbox's root. Its upper directory still exists."""
        syscalls.umount(f"{self.root}/{pool}/m-{box}")

    def retire_upper(self, pool: str, box: str, layer: str) -> None:
        """Turn the upper directory of an unmounted sandbox into a layer."""
        base = f"{self.root}/{pool}"
        os.rename(f"{base}/u-{box}", f"{base}/{layer}")

    def remove_box(self, pool: str, box: str) -> None:
        """Delete the directories of an unmounted sandbox."""
        base = f"{self.root}/{pool}"
        shutil.rmtree(f"{self.root}/work/{box}", ignore_errors=True)
        shutil.rmtree(f"{self.root}/images/staging-{box}", ignore_errors=True)
        for name in ("u", "w", "m"):
            if os.path.isdir(f"{base}/{name}-{box}"):
                tree.remove(f"{base}/{name}-{box}", f"{base}/trash")

    def remove_layer(self, pool: str, layer: str) -> None:
        """Delete a sealed layer that no sandbox uses. Idempotent."""
        base = f"{self.root}/{pool}"
        if os.path.isdir(f"{base}/{layer}"):
            tree.remove(f"{base}/{layer}", f"{base}/trash")

    def seal(self, request: dict[str, Any]) -> int:
        """Copy the upper directory of a sandbox into a new layer; return its size.

        Merge the older layers `under`, top first, below it. So a long chain of forks becomes one
        layer.
        """
        base = f"{self.root}/{request['pool']}"
        target = f"{base}/{request['layer']}"
        hard_links.complete(f"{base}/m-{request['box']}", f"{base}/w-{request['box']}")
        os.mkdir(target, 0o755)
        copy = LayerCopy(target, self.opaque, f"{base}/trash", frozenset({".bf"}))
        try:
            for lower in reversed(request["under"]):
                copy.apply(lower)
            copy.apply(f"{base}/u-{request['box']}")
        except BaseException:
            tree.remove(target, f"{base}/trash")
            raise
        return copy.bytes

    def copy_upper(self, pool: str, box: str, layer: str) -> int | None:
        """Copy the upper directory of a sandbox into a new layer; return its size.

        If the copy fails, remove it and return None.
        """
        base = f"{self.root}/{pool}"
        os.mkdir(target := f"{base}/{layer}", 0o755)
        copy = LayerCopy(target, self.opaque, f"{base}/trash")
        try:
            copy.apply(f"{base}/u-{box}")
        except OSError:
            tree.remove(target, f"{base}/trash")
            return None
        return copy.bytes

    def copy_out(self, layers: list[str], image: str | None, to: str) -> None:
        """Copy layers to numbered directories of the host, top first, and a live image."""
        os.mkdir(trash := f"{to}/trash")
        for place, layer in enumerate(layers):
            os.mkdir(target := f"{to}/{place}", 0o755)
            LayerCopy(target, self.opaque, trash).apply(layer)
        if image is not None:
            shutil.copytree(self.image(image), f"{to}/processes")
        os.rmdir(trash)

    def copy_upper_out(self, pool: str, box: str, to: str) -> None:
        """Copy the upper directory of a sandbox to `to`, an empty directory of the host."""
        base = f"{self.root}/{pool}"
        copy = LayerCopy(to, self.opaque, f"{base}/trash", frozenset({".bf"}))
        copy.apply(f"{base}/u-{box}")

    def copy_in(
        self, source: str, pool: str, layers: list[str], image: tuple[str, int] | None
    ) -> None:
        """Copy saved layers into a new pool, and a live image of a given size.

        Later files of the pool never get a number that a file of the layers has pinned.
        """
        base = f"{self.root}/{pool}"
        pinned = [inode_pins.highest_pinned(f"{source}/{n}") for n in range(len(layers))]
        inode_pins.pass_numbers(base, max(pinned))
        for place, layer in enumerate(layers):
            os.mkdir(target := f"{base}/{layer}", 0o755)
            LayerCopy(target, self.opaque, f"{base}/trash").apply(f"{source}/{place}")
        if image is not None:
            name, size = image
            live_images.copy_images(f"{source}/processes", self.image(name), size)

    def digest(self, pool: str, layer: str, parent: str) -> str:
        """Return the digest of a sealed layer on top of `parent`."""
        return tree_digest(f"{self.root}/{pool}/{layer}", parent)

    def traits(self, pool: str, layer: str) -> str:
        """Return the digest of times and hard links of a sealed layer."""
        return tree_traits(f"{self.root}/{pool}/{layer}")


def _half_of_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _mount_when_free(target: str, data: str) -> None:
    """Mount an overlay; wait while a lower directory is still in use as an upper directory.

    The launcher has unmounted the root of the ended sandbox. But a process that is just starting
    another sandbox, or an engine, has a copy of all mounts, and releases it only a moment later.
    """
    for pause in _BUSY_PAUSES:
        try:
            return syscalls.mount("overlay", target, "overlay", syscalls.MS_NOSUID, data)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
        time.sleep(pause)
    return syscalls.mount("overlay", target, "overlay", syscalls.MS_NOSUID, data)


def _relative(path: str, base: str) -> str:
    if path == "/":
        return path
    relative = os.path.relpath(path, base)
    chosen = relative if len(relative) < len(path) else path
    return chosen.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
