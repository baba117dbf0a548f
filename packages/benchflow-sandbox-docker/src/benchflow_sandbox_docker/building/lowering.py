"""A Dockerfile of today, as any BuildKit takes it."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchflow_contracts.errors import TaskError
from benchflow_sandbox_core.image_config import ImageConfig
from benchflow_sandbox_core.recipe.dockerfile import Dockerfile, Instruction
from benchflow_sandbox_core.recipe.heredoc import command, heredoc_start
from benchflow_sandbox_core.recipe.scope import Scope

from .stages import BuildStages

_LONGEST = 65_000
"""Bytes of a line that BuildKit before 0.11 takes."""


@dataclass(slots=True)
class Lowering:
    """Writes here-documents as what BuildKit knew in 2020, each line where it was.

    Scripts become arguments of the shell; files become those of an image of their own, from
    which they are copied, so that `COPY .` does not take them along. For that reason a context
    that does not show its Dockerfile, which the engine is sent with it, is such an image, too.
    """

    file: Dockerfile
    name: str
    beside: str
    """The image of the files."""
    context: str
    """The image of the context, where that does not show the Dockerfile; else empty."""
    args: Mapping[str, str]
    bases: Mapping[str, ImageConfig]
    files: dict[str, str] = field(default_factory=dict[str, str])
    """What that image must hold."""

    def text(self, text: str) -> str:
        """Return the file with the same instructions at the same lines.

        Raises:
            TaskError: A here-document is malformed, or longer than a line of a Dockerfile may be.
        """
        lines = text.removeprefix("\ufeff").split("\n")
        # The engine would fetch the frontend that is named there.
        top = [f"# escape={self.file.escape}", *["#"] * self.file.directives]
        lines[: self.file.directives] = top[: self.file.directives]
        if any(one.documents for one in self.file.instructions):
            for one, scope in BuildStages(self.file, self.name, self.bases, self.args).scopes():
                if one.documents:
                    self._put(lines, one, self._documented(one, scope))
        for one in self.file.instructions:
            if not one.documents and self._flags(one) != list(one.flags):
                self._put(lines, one, [f"{self._head(one)} {one.text}"])
        return "\n".join(lines)

    def _put(self, lines: list[str], one: Instruction, new: list[str]) -> None:
        if any(len(line.encode()) > _LONGEST for line in new):
            raise TaskError(
                f"a here-document is longer than the {_LONGEST} bytes of a line",
                where=f"{self.name}:{one.line}",
                hint="put it into a file of the context",
            )
        room = one.last - one.line + 1
        lines[one.line - 1 : one.last] = new + [""] * (room - len(new))

    def _documented(self, one: Instruction, scope: Scope) -> list[str]:
        where = f"{self.name}:{one.line}"
        if one.name == "RUN":
            argv = command(one.text, one.documents, scope.shell, where)
            return [f"{self._head(one)} {json.dumps(argv)}"]
        words = scope.words(where)
        *named, target = words.raw(one.text)
        if heredoc_start(target, where) is not None:
            raise TaskError(f"{one.name} needs a target", where=where)
        sources = [word for word in named if heredoc_start(word, where) is None]
        if len(sources) > 1 and not target.endswith("/"):
            raise TaskError(f"{target[:80]!r} must end with / for several files", where=where)
        made = [f"{self._head(one)} {json.dumps([*sources, target])}"] if sources else []
        place = f"/{one.line}"
        for document in one.documents:
            self.files[f"{place}/{document.name}"] = document.content(words)
        names = [_literal(f"{place}/{document.name}", where) for document in one.documents]
        flags = [f"--{key}={value}" for key, value in one.flags if key in {"chown", "chmod"}]
        copy = " ".join(["COPY", f"--from={self.beside}", *flags])
        if target.endswith("/"):
            return [*made, f"{copy} {json.dumps([*names, target])}"]
        # One after the other, the last is the file, unless a directory is there.
        return [*made, *(f"{copy} {json.dumps([name, target])}" for name in names)]

    def _head(self, one: Instruction) -> str:
        flags = (f"--{key}={value}" if value else f"--{key}" for key, value in self._flags(one))
        return " ".join([one.name, *flags])

    def _flags(self, one: Instruction) -> list[tuple[str, str]]:
        """Return the flags without `--link`, and with the image that stands for the context."""
        flags = [flag for flag in one.flags if flag[0] != "link"]
        if self.context and one.name == "COPY" and "from" not in dict(flags):
            flags.append(("from", self.context))
        if self.context and one.name == "RUN":
            flags = [
                (key, f"{value},from={self.context}" if key == "mount" and _binds(value) else value)
                for key, value in flags
            ]
        return flags


def _binds(mount: str) -> bool:
    """Whether a mount is one of files of the context."""
    pairs = (part.partition("=") for part in mount.split(","))
    told = {key.lower(): value for key, _, value in pairs}
    return told.get("type", "bind") == "bind" and "from" not in told


def _literal(path: str, where: str) -> str:
    if not re.fullmatch(r"[\w./-]+", path, re.ASCII):
        raise TaskError(
            f"the here-document {path[:80]!r} is no plain name of a file",
            where=where,
            hint="let letters, digits, dots, dashes and underscores name it",
        )
    return path
