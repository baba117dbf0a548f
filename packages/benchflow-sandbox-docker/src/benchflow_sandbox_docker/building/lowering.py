"""Rewrite a Dockerfile with current syntax for BuildKit of 2020."""

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
    """The name of the image that contains the files."""
    context: str
    """The name of the image of the context, or empty if the context shows its Dockerfile."""
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
        if any(instruction.documents for instruction in self.file.instructions):
            for instruction, scope in BuildStages(
                self.file, self.name, self.bases, self.args
            ).scopes():
                if instruction.documents:
                    self._put(lines, instruction, self._documented(instruction, scope))
        for instruction in self.file.instructions:
            if not instruction.documents and self._flags(instruction) != list(instruction.flags):
                self._put(lines, instruction, [f"{self._head(instruction)} {instruction.text}"])
        return "\n".join(lines)

    def _put(self, lines: list[str], instruction: Instruction, new: list[str]) -> None:
        if any(len(line.encode()) > _LONGEST for line in new):
            raise TaskError(
                f"a here-document is longer than the {_LONGEST} bytes of a line",
                where=f"{self.name}:{instruction.line}",
                hint="put it into a file of the context",
            )
        count = instruction.last - instruction.line + 1
        lines[instruction.line - 1 : instruction.last] = new + [""] * (count - len(new))

    def _documented(self, instruction: Instruction, scope: Scope) -> list[str]:
        where = f"{self.name}:{instruction.line}"
        if instruction.name == "RUN":
            argv = command(instruction.text, instruction.documents, scope.shell, where)
            return [f"{self._head(instruction)} {json.dumps(argv)}"]
        words = scope.words(where)
        *named, target = words.raw(instruction.text)
        if heredoc_start(target, where) is not None:
            raise TaskError(f"{instruction.name} needs a target", where=where)
        sources = [word for word in named if heredoc_start(word, where) is None]
        if len(sources) > 1 and not target.endswith("/"):
            raise TaskError(f"{target[:80]!r} must end with / for several files", where=where)
        copies = [f"{self._head(instruction)} {json.dumps([*sources, target])}"] if sources else []
        place = f"/{instruction.line}"
        for document in instruction.documents:
            self.files[f"{place}/{document.name}"] = document.content(words)
        names = [_literal(f"{place}/{document.name}", where) for document in instruction.documents]
        flags = [
            f"--{key}={value}" for key, value in instruction.flags if key in {"chown", "chmod"}
        ]
        copy = " ".join(["COPY", f"--from={self.beside}", *flags])
        if target.endswith("/"):
            return [*copies, f"{copy} {json.dumps([*names, target])}"]
        # The last copied file stays, unless the target is a directory.
        return [*copies, *(f"{copy} {json.dumps([name, target])}" for name in names)]

    def _head(self, instruction: Instruction) -> str:
        flags = (
            f"--{key}={value}" if value else f"--{key}" for key, value in self._flags(instruction)
        )
        return " ".join([instruction.name, *flags])

    def _flags(self, instruction: Instruction) -> list[tuple[str, str]]:
        """Return the flags without `--link`, and with the image of the context."""
        flags = [flag for flag in instruction.flags if flag[0] != "link"]
        if self.context and instruction.name == "COPY" and "from" not in dict(flags):
            flags.append(("from", self.context))
        if self.context and instruction.name == "RUN":
            flags = [
                (key, f"{value},from={self.context}" if key == "mount" and _binds(value) else value)
                for key, value in flags
            ]
        return flags


def _binds(mount: str) -> bool:
    """Return whether a mount binds files of the context."""
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
