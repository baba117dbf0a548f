"""Dockerfiles that a cloud can build step by step, without BuildKit."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from benchflow_contracts.errors import SandboxUnsupportedError
from benchflow_contracts.image import ImageRecipe
from benchflow_sandbox_core.recipe.context import BuildContext
from benchflow_sandbox_core.recipe.dockerfile import Dockerfile, Instruction

_HINT = "build the image elsewhere, push it to a registry, and name it in the task"
_STEPS = {"FROM", "RUN", "COPY", "ADD", "ENV", "ARG", "USER", "WORKDIR"}
_IGNORED = {
    *("CMD", "ENTRYPOINT", "EXPOSE", "VOLUME", "LABEL", "MAINTAINER"),
    *("HEALTHCHECK", "STOPSIGNAL", "ONBUILD"),
}
"""Without an effect on a sandbox, because its entrypoint does not run."""
_FLAGS = {"COPY": {"chown", "chmod", "link"}, "ADD": {"chown", "chmod", "link"}}
_ARCHIVES = (".tar", ".tgz", ".tbz2", ".txz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")


@dataclass(frozen=True, slots=True)
class PlainDockerfile:
    """A Dockerfile of one stage, whose instructions are plain steps."""

    text: str
    variables: tuple[tuple[str, bool], ...]
    """For each ENV and ARG in order: its name, and whether it stands before FROM."""
    has_user: bool
    has_workdir: bool

    @classmethod
    def of(cls, recipe: ImageRecipe, context: BuildContext) -> Self:
        """Check a Dockerfile.

        Raises:
            SandboxUnsupportedError: A step would have another meaning than with Docker.
            TaskError: The file is malformed.
        """
        name = recipe.dockerfile
        steps = Dockerfile.parse(context.dockerfile.encode(), name).instructions
        if recipe.target:
            raise _unsupported(f"the stage {recipe.target!r}", name)
        variables, stages = list[tuple[str, bool]](), 0
        for step in steps:
            stages += step.name == "FROM"
            if stages > 1:
                raise _unsupported("a second stage", f"{name}:{step.line}")
            if problem := _problem_of(step):
                raise _unsupported(problem, f"{name}:{step.line}")
            if step.name in {"ENV", "ARG"}:
                variables.append((step.name, stages == 0))
        names = {step.name for step in steps}
        return cls(context.dockerfile, tuple(variables), "USER" in names, "WORKDIR" in names)


def _unsupported(what: str, where: str) -> SandboxUnsupportedError:
    message = f"this sandbox cannot build {what} of a Dockerfile"
    return SandboxUnsupportedError(message, where=where, hint=_HINT)


def _problem_of(step: Instruction) -> str | None:
    """Return what a build by plain steps would leave out or change."""
    flags, first = dict(step.flags), step.text.split()[0]
    if step.name not in _STEPS | _IGNORED:
        return step.name[:40]
    if step.name == "FROM" and (
        first == "scratch" or flags.get("platform", "linux/amd64") != "linux/amd64"
    ):
        return f"FROM {flags.get('platform', '')} {first}"
    if step.name == "RUN":
        mounts = [value for flag, value in step.flags if flag == "mount"]
        if flags.keys() - {"mount"} or any("type=cache" not in m.split(",") for m in mounts):
            return f"the options {sorted(flags)} of RUN"
    elif step.name in _FLAGS and (more := sorted(flags.keys() - _FLAGS[step.name])):
        return f"the options {more} of {step.name}"
    if step.name == "ADD" and any(word.endswith(_ARCHIVES) for word in step.text.split()[:-1]):
        return "ADD of an archive, which Docker unpacks,"
    return None


def stage_context(context: BuildContext, directory: Path) -> None:
    """Copy the entries of a context to `directory`, so that no link leads out of it.

    Raises:
        SandboxUnsupportedError: A link leads out of the context. An SDK would follow it.
    """
    for entry in context.entries:
        to = directory / entry.path
        to.parent.mkdir(parents=True, exist_ok=True)
        if entry.is_directory:
            to.mkdir(exist_ok=True)
        elif entry.is_file:
            with entry.open() as source, to.open("xb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
        else:
            to.symlink_to(entry.target)
    root = os.path.realpath(directory)
    for entry in reversed(context.entries):
        to = directory / entry.path
        if not entry.is_file and not entry.is_directory:
            if os.path.commonpath([root, os.path.realpath(to)]) != root:
                raise SandboxUnsupportedError(
                    f"the link {entry.path!r} leads out of the build's context",
                    hint="remove the link, or list it in .dockerignore",
                )
        else:
            to.chmod(entry.mode)
