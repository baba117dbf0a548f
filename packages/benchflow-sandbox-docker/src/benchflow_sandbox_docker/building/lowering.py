"""Rewrite a current Dockerfile for BuildKit of 2020."""

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
"""Maximum bytes of a line for BuildKit before 0.11."""


@dataclass(slots=True)
class Lowering:
    """Replaces here-documents by older syntax. Every instruction keeps its line.

    Scripts become arguments of the shell. Files become files of a second image, and `COPY --from`
    copies them, so `COPY .` does not include them. The engine needs the Dockerfile in the
    context. So a context that hides its Dockerfile becomes such an image too.
    """

    file: Dockerfile
    name: str
    beside: str
    """The name of the image of the files."""
    context: str
    """The name of the image of the context if it hides the Dockerfile, else empty."""
    args: Mapping[str, str]
    bases: Mapping[str, ImageConfig]
    files: dict[str, str] = field(default_factory=dict[str, str])
    """The contents of the image `beside`, by path."""

    def text(self, text: str) -> str:
        """Return the file with the same instructions at the same lines.

        Raises:
            TaskError: A here-document is malformed, or longer than a line of a Dockerfile may be.
        """
        lines = text.removeprefix("\ufeff").split("\n")
        # The engine would fetch the frontend that a syntax directive names.
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
        copies = [f"{self._head(one)} {json.dumps([*sources, target])}"] if sources else []
        place = f"/{one.line}"
        for document in one.documents:
            self.files[f"{place}/{document.name}"] = document.content(words)
        names = [_literal(f"{place}/{document.name}", where) for document in one.documents]
        flags = [f"--{key}={value}" for key, value in one.flags if key in {"chown", "chmod"}]
        copy = " ".join(["COPY", f"--from={self.beside}", *flags])
        if target.endswith("/"):
            return [*copies, f"{copy} {json.dumps([*names, target])}"]
        # The last copied file stays, unless the target is a directory.
        return [*copies, *(f"{copy} {json.dumps([name, target])}" for name in names)]

    def _head(self, one: Instruction) -> str:
        flags = (f"--{key}={value}" if value else f"--{key}" for key, value in self._flags(one))
        return " ".join([one.name, *flags])

    def _flags(self, one: Instruction) -> list[tuple[str, str]]:
        """Return the flags without `--link`, and with the image of the context."""
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
    """Whether a mount binds files of the context."""
    pairs = (part.partition("=") for part in mount.split(","))
    options = {key.lower(): value for key, _, value in pairs}
    return options.get("type", "bind") == "bind" and "from" not in options


def _literal(path: str, where: str) -> str:
    if not re.fullmatch(r"[\w./-]+", path, re.ASCII):
        raise TaskError(
            f"the here-document {path[:80]!r} is not a plain file name",
            where=where,
            hint="use letters, digits, dots, dashes and underscores",
        )
    return path
