"""What containers wrote, where the engine keeps it on this host."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from benchflow_contracts.compared import FileChanges
from benchflow_contracts.errors import SandboxError, SandboxUnsupportedError
from benchflow_sandbox_core.comparison import Comparison
from benchflow_sandbox_core.thread import run

from .engine import Engine

T = TypeVar("T")

_OPAQUE = "trusted.overlay.opaque"
_OF_THE_ENGINE = "-init/diff"
"""The layer of empty files that the engine mounts over."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The files of one container when it was marked."""

    base: frozenset[str]
    """The directories of its image."""
    prints: Mapping[str, str]


@dataclass(slots=True)
class Written:
    """Compares containers with the mark of the first of their line.

    The engine's own list of changes believes times that root inside can set, so the
    directories themselves are read: those of `overlay2`, which only root of the host can.
    """

    engine: Engine
    _marks: dict[str, Mark] = field(default_factory=dict[str, Mark])
    """By sandbox and by image."""

    async def mark(self, sandbox: str, container: str, *, image: str) -> None:
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
        upper, lowers = await self._directories(container)
        prints = await _compare([upper], lowers, Comparison.prints)
        self._marks[sandbox] = Mark(frozenset(lowers), prints)

    async def changes(self, sandbox: str, container: str) -> FileChanges:
        """Return what was written since the mark, while the container stands still.

        Raises:
            SandboxUnsupportedError: Neither it nor one that it comes from was marked.
        """
        mark = self._marks.get(sandbox)
        if mark is None:
            raise SandboxUnsupportedError(
                f"sandbox {sandbox!r} was never marked", hint="mark it before the agent comes"
            )
        upper, lowers = await self._directories(container)
        base = [each for each in lowers if each in mark.base or each.endswith(_OF_THE_ENGINE)]
        between = [each for each in lowers if each not in base]
        return await _compare([upper, *between], base, lambda files: files.since(mark.prints))

    def carry(self, source: str, target: str) -> None:
        """Let an image have the mark of its sandbox, or a sandbox that of its image."""
        if (mark := self._marks.get(source)) is not None:
            self._marks[target] = mark

    def forget(self, name: str) -> None:
        """Forget a sandbox or an image. Idempotent."""
        self._marks.pop(name, None)

    async def _directories(self, container: str) -> tuple[str, list[str]]:
        told = cast("Mapping[str, Any]", await self.engine.do("inspect_container", container))
        driver = cast("Mapping[str, Any]", told.get("GraphDriver") or {})
        data = cast("Mapping[str, str]", driver.get("Data") or {})
        if driver.get("Name") != "overlay2" or "UpperDir" not in data:
            raise SandboxUnsupportedError(
                f"the engine keeps files with {driver.get('Name')!r}, which cannot be compared",
                hint="use the storage driver overlay2",
            )
        return data["UpperDir"], data["LowerDir"].split(":")


async def _compare(
    uppers: Sequence[str], base: Sequence[str], work: Callable[[Comparison], T]
) -> T:
    def compare() -> T:
        with ExitStack() as stack:
            opened = [_open(each, stack) for each in (*uppers, *base)]
            mine = len(uppers)
            return work(Comparison(opened[:mine], opened[mine:], _OPAQUE))

    try:
        return await run(lambda _: compare())
    except OSError as error:
        raise SandboxError(f"the files of a container cannot be compared: {error}") from error


def _open(path: str, stack: ExitStack) -> int:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise SandboxUnsupportedError(
            f"the files of a container cannot be read on this host: {error}",
            hint="run as root beside the engine",
        ) from error
    stack.callback(os.close, fd)
    return fd
