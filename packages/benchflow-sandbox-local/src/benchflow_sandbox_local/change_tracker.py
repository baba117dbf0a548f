"""The changed files of a sandbox, compared with a baseline."""

import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from benchflow_contracts.cause import host_error
from benchflow_contracts.changed_files import FileChanges
from benchflow_contracts.errors import SandboxUnsupportedError
from benchflow_sandbox_core.baseline import with_ignored_changes
from benchflow_sandbox_core.comparison import Comparison
from benchflow_sandbox_core.thread import run

from benchflow_sandbox_local.cgroup.group import Group
from benchflow_sandbox_local.store.layers import LayerStack

from .launcher import Launcher
from .stopped_processes import members

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ChangeTracker:
    """Compares the files of a frozen sandbox with the baseline, which all its forks share."""

    stack: LayerStack
    launcher: Launcher
    root: str
    counts: bool = True
    """Whether the processes of the sandbox are processes of the host, which can be counted."""

    async def set_baseline(self) -> None:
        """Set the present files as the baseline of this sandbox and its forks.

        Raises:
            SandboxUnsupportedError: The sandbox is from a snapshot, which may have a baseline.
            HostError: The files cannot be read.
        """
        if self.stack.layers:
            raise SandboxUnsupportedError(
                "a sandbox from a snapshot compares with the baseline of its first sandbox",
                hint="set the baseline in the sandbox that is made from the spec",
            )
        self.stack.mark = await self._prints()

    @asynccontextmanager
    async def ignore_changes(
        self, hold: Callable[[], AbstractAsyncContextManager[None]], group: Group, first: int
    ) -> AsyncGenerator[None, None]:
        """Add the changes made inside this block to the baseline.

        `hold` freezes the sandbox. Only its `first` process may live in its `group`.
        """
        self._marked()
        async with hold():
            if not self.counts or (group.members() or members(first)) != [first]:
                raise SandboxUnsupportedError("the sandbox has processes that could write, too")
            before = await self._prints()
        yield
        async with hold():
            self.stack.mark = with_ignored_changes(self._marked(), before, await self._prints())

    async def _prints(self) -> Mapping[str, str]:
        return await self._compare(Comparison.fingerprints)

    def _marked(self) -> Mapping[str, str]:
        mark = self.stack.mark
        if mark is None:
            raise SandboxUnsupportedError(
                "there is no baseline: changes are not known",
                hint="set the baseline before the agent starts",
            )
        return mark

    async def changed_files(self) -> FileChanges:
        """Return the changes since the baseline.

        Raises:
            SandboxUnsupportedError: There is no baseline.
            HostError: The files cannot be read.
        """
        mark = self._marked()
        return await self._compare(lambda comparison: comparison.since(mark))

    async def _compare(self, work: Callable[[Comparison], T]) -> T:
        uppers = self.stack.uppers(self.root)
        directories = [*uppers, *self.stack.base.lowers]
        try:
            answer = await self.launcher.ask("open", directories=directories)
            opaque, mine = answer.message["opaque"], len(uppers)
            comparison = Comparison(answer.fds[:mine], answer.fds[mine:], opaque)
            try:
                return await run(lambda _: work(comparison))
            finally:
                for fd in answer.fds:
                    os.close(fd)
        except (OSError, MemoryError) as error:
            raise host_error("compare the files of a sandbox", error) from error
