"""Which files of a build context are left out: `.dockerignore`."""

import fnmatch
import os
import posixpath
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from benchflow_contracts.errors import SandboxError

from .text import read_text

_NAME = ".dockerignore"
_MOST = 1000
"""Patterns: each is tried for each file."""


@dataclass(frozen=True, slots=True)
class _Pattern:
    parts: tuple[re.Pattern[str] | None, ...]
    """One for each part of a path; `None` is `**`, any number of them."""
    keeps: bool

    @classmethod
    def parse(cls, line: str) -> "_Pattern | None":
        keeps = line.startswith("!")
        # As Go cleans a path: `..` above the root is the root.
        clean = posixpath.normpath("/" + line.removeprefix("!").strip()).strip("/")
        if not clean:
            return None
        return cls(tuple(_part(part) for part in clean.split("/")), keeps)

    def matches(self, path: list[str]) -> bool:
        """Say whether it names the path or a directory above it."""
        reached = {0}  # positions after each part; a set, so that nothing is tried twice
        for name in path:
            reached = self._skipped(reached)
            after = {at for at in reached if at < len(self.parts) and self.parts[at] is None}
            for at in reached:
                part = self.parts[at] if at < len(self.parts) else None
                if part is not None and part.match(name):
                    after.add(at + 1)
            reached = after
            if len(self.parts) in self._skipped(reached):
                return True
        return False

    def _skipped(self, reached: set[int]) -> set[int]:
        found = set(reached)
        for at in reached:
            step = at
            while step < len(self.parts) and self.parts[step] is None:
                step += 1
                found.add(step)
        return found


def _part(text: str) -> re.Pattern[str] | None:
    # `translate` makes patterns that do not backtrack, whatever a hostile author writes.
    return None if text == "**" else re.compile(fnmatch.translate(text.replace("[^", "[!")))


@dataclass(frozen=True, slots=True)
class Ignore:
    """The patterns of one `.dockerignore`; the last that matches decides."""

    patterns: tuple[_Pattern, ...] = ()

    @classmethod
    def of(cls, context: Path, dockerfile: str) -> Self:
        """Read the patterns of a context: those for this Dockerfile alone, else those for all.

        Raises:
            SandboxError: They are no regular file, too large or too many.
        """
        for name in (f"{dockerfile}{_NAME}", _NAME):
            if os.path.lexists(context / name):
                return cls.parse(read_text(context / name, "it cannot be read"))
        return cls()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the patterns.

        Source: docs.docker.com/build/concepts/context, "Syntax".

        Raises:
            SandboxError: There are too many.
        """
        lines = (line.strip() for line in text.removeprefix("\ufeff").splitlines())
        found = [_Pattern.parse(line) for line in lines if line and not line.startswith("#")]
        if len(found) > _MOST:
            raise SandboxError(f"more than {_MOST} patterns", where=".dockerignore")
        return cls(tuple(pattern for pattern in found if pattern is not None))

    @property
    def keeps_some(self) -> bool:
        """Whether something below a directory that is left out may still be there."""
        return any(pattern.keeps for pattern in self.patterns)

    def excludes(self, path: str) -> bool:
        """Say whether the file at a path of the context is left out."""
        parts = path.split("/")
        for pattern in reversed(self.patterns):
            if pattern.matches(parts):
                return not pattern.keeps
        return False
