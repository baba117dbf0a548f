"""What containers wrote, where the engine keeps it on this host."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TypeVar

from benchflow_contracts._model import Model
from benchflow_contracts.cause import host_error, refuse_shortage
from benchflow_contracts.changed_files import FileChanges
from benchflow_contracts.errors import SandboxUnsupportedError
from benchflow_sandbox_core.baseline import decode_baseline, encode_baseline, with_ignored_changes
from benchflow_sandbox_core.comparison import Comparison
from benchflow_sandbox_core.thread import run
from pydantic import Field

from .engine import DockerEngine
from .host_files import Overlay, overlay_of
from .volume_contents import VolumeContents

T = TypeVar("T")

_OPAQUE = "trusted.overlay.opaque"
_MOUNTED = frozenset({"dev", "proc", "sys"})
"""Containers that a snapshot comes from may have left what the engine mounted over."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The files of one container when it was marked."""

    layers: int
    """How many of its image are below it."""
    fingerprints: Mapping[str, str]
    volumes: Mapping[str, str] = field(default_factory=dict[str, str])
    """Prints of what its named volumes held. They go with no image."""


class SavedBaseline(Model):
    """A mark as it is saved with an image."""

    layers: int = Field(ge=0)
    fingerprints: Mapping[str, str]


@dataclass(slots=True)
class ContainerChangeTracker:
    """Compares containers with the mark of the first of their line.

    The engine's own list of changes believes times that root inside can set, so the
    directories of its overlay are read themselves, which only root of the host can.
    """

    engine: DockerEngine
    _marks: dict[str, Baseline] = field(default_factory=dict[str, Baseline])
    """By sandbox and by image."""

    async def set_baseline(self, sandbox: str, container: str, *, image: str) -> None:
        """Remember the files of a container.

        Raises:
            SandboxUnsupportedError: It was made from a snapshot, or the engine keeps its
                files where they cannot be read.
        """
        if image:
            raise SandboxUnsupportedError(
                "a sandbox from a snapshot compares with the mark of its first one",
                hint="mark the sandbox that is made from the spec",
            )
        found = await overlay_of(self.engine, container)
        base = [*found.own, *found.layers]
        fingerprints = await _compare([found.upper], base, Comparison.fingerprints)
        self._marks[sandbox] = Baseline(
            len(found.layers), fingerprints, await _in(found, VolumeContents.fingerprints)
        )

    async def changed_files(self, sandbox: str, container: str) -> FileChanges:
        """Return what was written since the mark, while the container stands still.

        Raises:
            SandboxUnsupportedError: Neither it nor one that it comes from was marked.
        """
        mark = self.marked(sandbox)
        found = await overlay_of(self.engine, container)
        own = await self._against(mark, found, lambda files: files.since(mark.fingerprints))
        beside = await _in(found, lambda volumes: volumes.since(mark.volumes))
        return _both(own, beside)

    async def fingerprints(self, sandbox: str, container: str) -> Mapping[str, str]:
        """Return prints of all that is not as in the image of the first of the line.

        Raises:
            SandboxUnsupportedError: Neither it nor one that it comes from was marked.
        """
        found = await overlay_of(self.engine, container)
        return await self._against(self.marked(sandbox), found, Comparison.fingerprints)

    async def take_for_ours(self, sandbox: str, container: str, before: Mapping[str, str]) -> None:
        """Let the mark have what was written since the prints of `before` were taken."""
        mark, now = self.marked(sandbox), await self.fingerprints(sandbox, container)
        self._marks[sandbox] = replace(
            mark, fingerprints=with_ignored_changes(mark.fingerprints, before, now)
        )

    def marked(self, name: str) -> Baseline:
        """Return a mark; raise `SandboxUnsupportedError` when there is none."""
        if name not in self._marks:
            raise SandboxUnsupportedError(
                f"sandbox {name!r} was never marked", hint="mark it before the agent comes"
            )
        return self._marks[name]

    def saved_baseline(self, image: str) -> SavedBaseline | None:
        """Return the mark of an image, if it has one that can be saved."""
        mark = self._marks.get(image)
        fingerprints = None if mark is None else encode_baseline(mark.fingerprints)
        if mark is None or fingerprints is None:
            return None
        return SavedBaseline(layers=mark.layers, fingerprints=fingerprints)

    def load(self, image: str, told: SavedBaseline | None) -> None:
        """Let an image have a mark that was saved with it."""
        if told is not None:
            self._marks[image] = Baseline(told.layers, decode_baseline(told.fingerprints) or {})

    async def _against(self, mark: Baseline, found: Overlay, work: Callable[[Comparison], T]) -> T:
        since = len(found.layers) - mark.layers
        between, base = found.layers[:since], found.layers[since:]
        return await _compare([found.upper, *between], [*found.own, *base], work)

    def carry(self, source: str, target: str) -> None:
        """Let an image have the mark of its sandbox, or a sandbox that of its image."""
        if (mark := self._marks.get(source)) is not None:
            self._marks[target] = replace(mark, volumes={})

    def forget(self, name: str) -> None:
        """Forget a sandbox or an image. Idempotent."""
        self._marks.pop(name, None)


async def _compare(
    uppers: Sequence[str], base: Sequence[str], work: Callable[[Comparison], T]
) -> T:
    def compare(stack: ExitStack) -> T:
        opened = [open_directory(each, stack) for each in (*uppers, *base)]
        mine = len(uppers)
        return work(Comparison(opened[:mine], opened[mine:], _OPAQUE, _MOUNTED))

    return await _looked_at(compare)


async def _in(found: Overlay, work: Callable[[VolumeContents], T]) -> T:
    """Do `work` on what the container's named volumes hold, with nothing read where are none."""
    if not found.volumes:
        return work(VolumeContents({}))
    places = found.volumes.items()
    return await _looked_at(
        lambda stack: work(VolumeContents({at: open_directory(p, stack) for at, p in places}))
    )


async def _looked_at(work: Callable[[ExitStack], T]) -> T:
    def do() -> T:
        with ExitStack() as stack:
            return work(stack)

    try:
        return await run(lambda _: do())
    except (OSError, MemoryError) as error:
        raise host_error("compare the files of a container", error) from error


def _both(own: FileChanges, beside: FileChanges) -> FileChanges:
    return FileChanges(
        added=(*own.added, *beside.added),
        changed=(*own.changed, *beside.changed),
        removed=(*own.removed, *beside.removed),
        links={**own.links, **beside.links},
        endless=(*own.endless, *beside.endless),
    )


def open_directory(path: str, stack: ExitStack) -> int:
    """Open a directory of the engine until `stack` ends.

    Raises:
        SandboxUnsupportedError: This process cannot read it.
        HostError: The host could not open it.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        refuse_shortage("open the files of a container", error)
        raise SandboxUnsupportedError(
            f"the files of a container cannot be read on this host: {error}",
            hint="run as root beside the engine",
        ) from error
    stack.callback(os.close, fd)
    return fd
