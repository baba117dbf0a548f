"""What one box is made of, and what it made of it."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from benchflow_contracts.compared import FileChanges
from benchflow_contracts.errors import SandboxError, SandboxUnsupportedError
from benchflow_sandbox_core.comparison import Comparison
from benchflow_sandbox_core.thread import run

from .launcher import Launcher
from .rootfs.base import Base
from .store.layers import Family, Layer

T = TypeVar("T")


@dataclass(slots=True)
class Lineage:
    """The directories of a box: its own one over sealed layers over a base."""

    base: Base
    family: Family
    layers: tuple[Layer, ...]
    """Top first."""
    box: str = ""
    """The name of this life; empty when there is none."""

    def uppers(self, root: str) -> list[str]:
        """Return what was written over the base, top first, as the launcher sees it."""
        below = [layer.path(root) for layer in self.layers]
        return [f"{root}/{self.family.name}/u-{self.box}", *below]

    async def mark(self, launcher: Launcher, root: str) -> None:
        """Remember what was written until now, for this box and all that are forked from it.

        Raises:
            SandboxUnsupportedError: It was forked from another, which may have a mark.
            SandboxError: The files cannot be read.
        """
        if self.layers:
            raise SandboxUnsupportedError(
                "a sandbox from a snapshot compares with the mark of its first one",
                hint="mark the sandbox that is made from the spec",
            )
        self.family.mark = await self._compare(launcher, root, Comparison.prints)

    async def changes(self, launcher: Launcher, root: str) -> FileChanges:
        """Return what was written since the mark.

        Raises:
            SandboxUnsupportedError: There is no mark.
            SandboxError: The files cannot be read.
        """
        mark = self.family.mark
        if mark is None:
            raise SandboxUnsupportedError(
                "nothing was marked: the changes since then are not known",
                hint="mark a sandbox before the agent comes; saved snapshots lose the mark",
            )
        return await self._compare(launcher, root, lambda comparison: comparison.since(mark))

    async def _compare(self, launcher: Launcher, root: str, work: Callable[[Comparison], T]) -> T:
        uppers = self.uppers(root)
        try:
            answer = await launcher.ask("open", directories=[*uppers, *self.base.lowers])
            opaque, mine = answer.message["opaque"], len(uppers)
            comparison = Comparison(answer.fds[:mine], answer.fds[mine:], opaque)
            try:
                return await run(lambda _: work(comparison))
            finally:
                for fd in answer.fds:
                    os.close(fd)
        except OSError as error:
            raise SandboxError(f"the files of a box cannot be compared: {error}") from error
