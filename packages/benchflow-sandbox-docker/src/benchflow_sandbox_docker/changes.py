"""Compare the files of a container with its baseline, in the engine's own directories."""

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TypeVar

from benchflow_contracts._model import Model
from benchflow_contracts.cause import host_error, refuse_shortage
from benchflow_contracts.changed_files import FileChanges
from benchflow_contracts.errors import SandboxLimitError, SandboxUnsupportedError
from benchflow_sandbox_core.baseline import decode_baseline, encode_baseline, with_ignored_changes
from benchflow_sandbox_core.comparison import MAX_DEPTH, Comparison, as_text
from benchflow_sandbox_core.thread import run
from pydantic import Field

from .engine import DockerEngine
from .host_files import Overlay, overlay_of

_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})

_Seen = tuple[str, os.stat_result, str]
"""A path in the container, its metadata, and its target if it is a link."""


@dataclass(frozen=True, slots=True)
class VolumeContents:
    """The files of named volumes, which no layer contains.

    `volumes` maps paths in the container to descriptors of directories. The files are hostile, so
    no link is followed. Services write to volumes at the same time, so a file that disappears
    during the walk is skipped.
    """

    volumes: Mapping[str, int]

    def fingerprints(self) -> dict[str, str]:
        """Return a fingerprint of each path. Processes inside cannot set the time in it."""
        return {path: _fingerprint(info, target) for path, info, target in self._seen()}

    def since(self, baseline: Mapping[str, str]) -> FileChanges:
        """Return the differences from the fingerprints of `baseline`."""
        added, changed = list[str](), list[str]()
        left, links = set(baseline), dict[str, str]()
        for path, info, target in self._seen():
            left.discard(path)
            if baseline.get(path) == _fingerprint(info, target):
                continue
            (changed if path in baseline else added).append(path)
            if target:
                links[as_text(path)] = as_text(target)
        shown = {"added": _all(added), "changed": _all(changed), "removed": _all(left)}
        return FileChanges(**shown, links=links)

    def _seen(self) -> Iterator[_Seen]:
        for path, directory in self.volumes.items():
            yield from _below(directory, path.rstrip("/"), 0)


def _below(directory: int, path: str, depth: int) -> Iterator[_Seen]:
    if depth > MAX_DEPTH:
        raise SandboxLimitError(f"a path is deeper than {MAX_DEPTH} directories")
    for name in os.listdir(directory):
        here, below = f"{path}/{name}", None
        try:
            info = os.stat(name, dir_fd=directory, follow_symlinks=False)
            target = os.readlink(name, dir_fd=directory) if stat.S_ISLNK(info.st_mode) else ""
            if stat.S_ISDIR(info.st_mode):
                below = _open_dir(name, directory)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            continue
        yield here, info, target
        if below is not None:
            try:
                yield from _below(below, here, depth + 1)
            finally:
                os.close(below)


def _open_dir(name: str, parent: int) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)


def _fingerprint(info: os.stat_result, target: str) -> str:
    identity = f"{info.st_mode:o} {info.st_uid} {info.st_gid} {info.st_rdev} {info.st_ino}"
    # The time of a directory changes with its entries.
    changed_at = 0 if stat.S_ISDIR(info.st_mode) else info.st_ctime_ns
    return f"{identity} {changed_at} {target}"


def _all(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(map(as_text, paths)))


T = TypeVar("T")

_OPAQUE = "trusted.overlay.opaque"
_MOUNTED = frozenset({"dev", "proc", "sys"})
"""Mount points of the engine. Earlier containers of a snapshot may have left files below them."""


class SavedBaseline(Model):
    """The saved form of a baseline, beside an image."""

    layers: int = Field(ge=0)
    prints: Mapping[str, str]

    def load(self) -> "Baseline":
        """Return the baseline that was saved."""
        return Baseline(self.layers, decode_baseline(self.prints) or {})


@dataclass(frozen=True, slots=True)
class Baseline:
    """The files of one container when its baseline was set."""

    layers: int
    """Number of image layers below the container's own layer."""
    fingerprints: Mapping[str, str]
    volumes: Mapping[str, str] = field(default_factory=dict[str, str])
    """Fingerprints of the files in named volumes. An image does not contain these files."""

    def without_volumes(self) -> "Baseline":
        """Return the baseline for an image of the container."""
        return replace(self, volumes={})

    def to_save(self) -> SavedBaseline | None:
        """Return the form to save with an image. Return `None` if the baseline is too large."""
        encoded = encode_baseline(self.fingerprints)
        return None if encoded is None else SavedBaseline(layers=self.layers, prints=encoded)


class ContainerChangeTracker:
    """Compares one container with a baseline: its own, or the baseline of the first sandbox.

    The engine's own list of changes trusts times that root inside can set. So the tracker reads
    the directories of the overlay, which needs root on the host.
    """

    def __init__(self, engine: DockerEngine, sandbox: str, inherited: Baseline | None) -> None:
        self._engine = engine
        self._sandbox = sandbox
        self._baseline = inherited

    @property
    def baseline(self) -> Baseline:
        """The baseline; raise `SandboxUnsupportedError` if it is not set."""
        if self._baseline is None:
            raise SandboxUnsupportedError(
                f"sandbox {self._sandbox!r} has no baseline",
                hint="set the baseline before the agent starts",
            )
        return self._baseline

    @property
    def image_baseline(self) -> Baseline | None:
        """The baseline that an image of this container inherits."""
        return None if self._baseline is None else self._baseline.without_volumes()

    async def set_baseline(self, container: str) -> None:
        """Record the files of the container as its baseline.

        Raises:
            SandboxUnsupportedError: The files cannot be read on this host.
        """
        overlay = await overlay_of(self._engine, container)
        base = [*overlay.engine_layers, *overlay.layers]
        fingerprints = await _compare([overlay.upper], base, Comparison.fingerprints)
        volumes = await _compare_volumes(overlay, VolumeContents.fingerprints)
        self._baseline = Baseline(len(overlay.layers), fingerprints, volumes)

    async def changed_files(self, container: str) -> FileChanges:
        """Return the changes since the baseline. The container must be paused.

        Raises:
            SandboxUnsupportedError: No baseline is set.
        """
        baseline = self.baseline
        overlay = await overlay_of(self._engine, container)
        own = await self._against_baseline(overlay, lambda c: c.since(baseline.fingerprints))
        volumes = await _compare_volumes(overlay, lambda v: v.since(baseline.volumes))
        return _merge(own, volumes)

    async def fingerprints(self, container: str) -> Mapping[str, str]:
        """Return fingerprints of all files that differ from the image of the first sandbox.

        Raises:
            SandboxUnsupportedError: No baseline is set.
        """
        overlay = await overlay_of(self._engine, container)
        return await self._against_baseline(overlay, Comparison.fingerprints)

    async def ignore_since(self, container: str, before: Mapping[str, str]) -> None:
        """Add the changes since the fingerprints of `before` to the baseline."""
        baseline, now = self.baseline, await self.fingerprints(container)
        merged = with_ignored_changes(baseline.fingerprints, before, now)
        self._baseline = replace(baseline, fingerprints=merged)

    async def _against_baseline(self, overlay: Overlay, work: Callable[[Comparison], T]) -> T:
        since = len(overlay.layers) - self.baseline.layers
        between, base = overlay.layers[:since], overlay.layers[since:]
        return await _compare([overlay.upper, *between], [*overlay.engine_layers, *base], work)


async def _compare(
    uppers: Sequence[str], base: Sequence[str], work: Callable[[Comparison], T]
) -> T:
    def compare(stack: ExitStack) -> T:
        opened = [open_directory(path, stack) for path in (*uppers, *base)]
        count = len(uppers)
        return work(Comparison(opened[:count], opened[count:], _OPAQUE, _MOUNTED))

    return await _in_thread(compare)


async def _compare_volumes(overlay: Overlay, work: Callable[[VolumeContents], T]) -> T:
    """Do `work` on the container's named volumes, if it has any."""
    if not overlay.volumes:
        return work(VolumeContents({}))
    paths = overlay.volumes.items()
    return await _in_thread(
        lambda stack: work(VolumeContents({at: open_directory(p, stack) for at, p in paths}))
    )


async def _in_thread(work: Callable[[ExitStack], T]) -> T:
    def do() -> T:
        with ExitStack() as stack:
            return work(stack)

    try:
        return await run(lambda _: do())
    except (OSError, MemoryError) as error:
        raise host_error("compare the files of a container", error) from error


def _merge(own: FileChanges, volumes: FileChanges) -> FileChanges:
    return FileChanges(
        added=(*own.added, *volumes.added),
        changed=(*own.changed, *volumes.changed),
        removed=(*own.removed, *volumes.removed),
        links={**own.links, **volumes.links},
        endless=(*own.endless, *volumes.endless),
    )


def open_directory(path: str, stack: ExitStack) -> int:
    """Open a directory of the engine until `stack` ends.

    Raises:
        SandboxUnsupportedError: This process cannot read the directory.
        HostError: The host could not open the directory.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        refuse_shortage("open the files of a container", error)
        raise SandboxUnsupportedError(
            f"the files of a container cannot be read on this host: {error}",
            hint="run as root on the engine's host",
        ) from error
    stack.callback(os.close, fd)
    return fd
