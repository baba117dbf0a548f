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
    """Whether the host can count the processes of the sandbox."""

    async def set_baseline(self) -> None:
        """Set the present files as the baseline of this sandbox and its forks.

        Raises:
            SandboxUnsupportedError: The sandbox was made from a snapshot.
            HostError: The files cannot be read.
        """
        if self.stack.layers:
            raise SandboxUnsupportedError(
                "a sandbox from a snapshot has the baseline of the sandbox that was snapshotted",
                hint="set the baseline in the sandbox that is made from the spec",
            )
        self.stack.mark = await self._fingerprints()

    @asynccontextmanager
    async def ignore_changes(
        self, freeze: Callable[[], AbstractAsyncContextManager[None]], group: Group, first: int
    ) -> AsyncGenerator[None, None]:
        """Add the changes made inside this block to the baseline.

        `freeze` freezes the sandbox. At the start of the block, only the process `first` may live
        in `group`.
        """
        self._baseline()
        async with freeze():
            if not self.counts or (group.members() or members(first)) != [first]:
                raise SandboxUnsupportedError("the sandbox has processes that could write, too")
            before = await self._fingerprints()
        yield
        async with freeze():
            after = await self._fingerprints()
            self.stack.mark = with_ignored_changes(self._baseline(), before, after)

    async def _fingerprints(self) -> Mapping[str, str]:
        return await self._compare(Comparison.fingerprints)

    def _baseline(self) -> Mapping[str, str]:
        mark = self.stack.mark
        if mark is None:
            raise SandboxUnsupportedError(
                "the sandbox does not have a baseline to compare with",
                hint="set the baseline before the agent starts",
            )
        return mark

    async def changed_files(self) -> FileChanges:
        """Return the changes since the baseline.

        Raises:
            SandboxUnsupportedError: The sandbox does not have a baseline.
            HostError: The files cannot be read.
        """
        mark = self._baseline()
        return await self._compare(lambda comparison: comparison.since(mark))

    async def _compare(self, work: Callable[[Comparison], T]) -> T:
        uppers = self.stack.uppers(self.root)
        directories = [*uppers, *self.stack.base.lowers]
        try:
            answer = await self.launcher.ask("open", directories=directories)
            opaque, count = answer.message["opaque"], len(uppers)
            comparison = Comparison(answer.fds[:count], answer.fds[count:], opaque)
            try:
                return await run(lambda _: work(comparison))
            finally:
                for fd in answer.fds:
                    os.close(fd)
        except (OSError, MemoryError) as error:
            raise host_error("compare the files of a sandbox", error) from error
