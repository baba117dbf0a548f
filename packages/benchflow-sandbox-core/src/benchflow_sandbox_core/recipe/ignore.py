"""`.dockerignore`: the files that a build context leaves out."""

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
_MAX_PATTERNS = 1000
"""Each pattern is matched with each file."""


@dataclass(frozen=True, slots=True)
class _Pattern:
    parts: tuple[re.Pattern[str] | None, ...]
    """One for each part of a path; `None` is `**`, any number of parts."""
    keeps: bool

    @classmethod
    def parse(cls, line: str) -> "_Pattern | None":
        keeps = line.startswith("!")
        # As in Go, `..` above the root is the root.
        clean = posixpath.normpath("/" + line.removeprefix("!").strip()).strip("/")
        if not clean:
            return None
        return cls(tuple(_part(part) for part in clean.split("/")), keeps)

    def matches(self, path: list[str]) -> bool:
        """Return whether the pattern matches the path or a directory above it."""
        reached = {0}  # positions after each part; a set avoids repeated work
        for name in path:
            reached = self._skip_wildcards(reached)
            after = {at for at in reached if at < len(self.parts) and self.parts[at] is None}
            for at in reached:
                part = self.parts[at] if at < len(self.parts) else None
                if part is not None and part.match(name):
                    after.add(at + 1)
            reached = after
            if len(self.parts) in self._skip_wildcards(reached):
                return True
        return False

    def _skip_wildcards(self, reached: set[int]) -> set[int]:
        positions = set(reached)
        for at in reached:
            step = at
            while step < len(self.parts) and self.parts[step] is None:
                step += 1
                positions.add(step)
        return positions


def _part(text: str) -> re.Pattern[str] | None:
    # Patterns of `translate` do not backtrack, so a hostile pattern is not slow.
    return None if text == "**" else re.compile(fnmatch.translate(text.replace("[^", "[!")))


@dataclass(frozen=True, slots=True)
class Ignore:
    """The patterns of one `.dockerignore`; the last match decides."""

    patterns: tuple[_Pattern, ...] = ()

    @classmethod
    def of(cls, context: Path, dockerfile: str) -> Self:
        """Read the patterns of a context: of this Dockerfile's own file, else of the common file.

        Raises:
            SandboxError: The file is not a regular file or too large, or has too many patterns.
        """
        for name in (f"{dockerfile}{_NAME}", _NAME):
            if os.path.lexists(context / name):
                return cls.parse(read_text(context / name, "`.dockerignore` cannot be read"))
        return cls()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the patterns.

        Source: docs.docker.com/build/concepts/context, "Syntax".

        Raises:
            SandboxError: There are too many patterns.
        """
        lines = (line.strip() for line in text.removeprefix("\ufeff").splitlines())
        patterns = [_Pattern.parse(line) for line in lines if line and not line.startswith("#")]
        if len(patterns) > _MAX_PATTERNS:
            raise SandboxError(f"more than {_MAX_PATTERNS} patterns", where=".dockerignore")
        return cls(tuple(pattern for pattern in patterns if pattern is not None))

    @property
    def keeps_some(self) -> bool:
        """Whether entries below an ignored directory may be kept."""
        return any(pattern.keeps for pattern in self.patterns)

    def excludes(self, path: str) -> bool:
        """Return whether the file at a path of the context is ignored."""
        parts = path.split("/")
        for pattern in reversed(self.patterns):
            if pattern.matches(parts):
                return not pattern.keeps
        return False
