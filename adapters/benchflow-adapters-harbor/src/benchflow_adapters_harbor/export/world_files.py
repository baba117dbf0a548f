"""Copy the output of tests and the artifacts of a leaf from the rollout's directory."""

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from benchflow_contracts import FinishedRollout, RolloutNode
from benchflow_contracts.cause import refuse_shortage

from .plain import plain_text

_STDOUT = 2_000_000
"""Largest number of bytes that are read of the tests' output."""


class WorldFiles:
    """The files of the world in which `node`, or step `step` of the task, was graded.

    The directory is not trusted: links and pipes are neither followed nor copied.
    """

    def __init__(
        self, rollout: FinishedRollout, node: RolloutNode, step: str | None = None
    ) -> None:
        home = _world(rollout.directory, node)
        self._home = home if home is None or step is None else home / "steps" / step

    def test_output(self) -> str | None:
        """Return the output of the tests, or None if it was not saved."""
        if self._home is None:
            return None
        with suppress(OSError):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            file = os.open(self._home / "verifier" / "test-stdout.txt", flags)
            with os.fdopen(file, "rb") as opened:
                if stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                    return plain_text(opened.read(_STDOUT).decode("utf-8", "replace"))
        return None

    def copy_artifacts(self, target: Path) -> None:
        """Copy the saved artifacts and their manifest into the directory `target`."""
        source = None if self._home is None else self._home / "artifacts"
        if source is None or source.is_symlink():
            return
        for directory, file in _regular(source):
            place = target / directory.relative_to(source)
            place.mkdir(parents=True, exist_ok=True)
            if file is not None:
                shutil.copyfile(directory / file, place / file, follow_symlinks=False)


def _world(home: Path | None, node: RolloutNode) -> Path | None:
    if home is None:
        return None
    worlds = [home / "branches" / each.id for each in reversed(node.path)]
    return next((each for each in worlds if each.is_dir()), home)


def _regular(source: Path) -> Iterator[tuple[Path, str | None]]:
    """Yield `source`, each directory below it, and each regular file in them."""
    for directory, _, files in os.walk(source, onerror=partial(refuse_shortage, "read a record")):
        yield Path(directory), None
        for name in files:
            if stat.S_ISREG(os.lstat(Path(directory, name)).st_mode):
                yield Path(directory), name
