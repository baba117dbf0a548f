"""The steps by which a cloud builds an image, with the meaning of Docker."""

import posixpath
import re
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

from benchflow_contracts.errors import SandboxUnsupportedError
from benchflow_sandbox_core.image_config import ImageConfig
from benchflow_sandbox_native import link_path

from .image_builds import SAVE_ENVIRONMENT, ImagePlan
from .plain_dockerfile import PlainDockerfile, stage_context
from .transport import PROGRAM

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_PLAIN = re.compile(r"[\w./@+=:,~ -]+")
_NAME = re.compile(r"[a-z_][a-z0-9_-]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RunStep:
    """Run a command of a shell as a user."""

    command: str
    user: str


@dataclass(frozen=True, slots=True)
class CopyStep:
    """Copy a file or directory."""

    source: str
    """A path or pattern, relative to `root`. `""` is `root`."""
    target: str
    """An absolute path; it ends with `/` if it must be a directory."""
    owner: str = "root:root"
    mode: int | None = None
    root: Path = Path()
    """A path of the host."""

    def path_below_root(self, cloud: str) -> str:
        """Return the source without its first `/`, for a cloud that treats it as a pattern.

        Raises:
            SandboxUnsupportedError: The path of `root` has special characters.
        """
        text = str(self.root.resolve()).lstrip("/")
        if not _PLAIN.fullmatch(text):
            raise SandboxUnsupportedError(
                f"{cloud} cannot copy {str(self.root)!r}: its path has special characters",
                hint="move it to a path of letters, digits and ./@+=:,~ -",
            )
        return posixpath.join(text, self.source).rstrip("/")


@dataclass(frozen=True, slots=True)
class WorkdirStep:
    """Set the absolute directory of the following steps. Create it if it is missing."""

    path: str


@dataclass(frozen=True, slots=True)
class EnvStep:
    """Set a variable of the following steps. Variables of the base image are not replaced yet."""

    name: str
    value: str


BuildStep = RunStep | CopyStep | WorkdirStep | EnvStep
Parse = Callable[[str, Any], str]
"""A parser of a cloud's SDK: it gets the text and `DockerfileSteps`, calls one of their methods for
each instruction in order, and returns the base image. It raises `ValueError` for a step that it
does not support."""


class DockerfileSteps:
    """Collects the steps of a Dockerfile from the calls of a parser.

    The builders of clouds have other meanings than Docker: they may start the entrypoint in the
    build, give files of COPY to the present user, keep the arguments of a build as variables, and
    leave variables that are set before unexpanded.
    """

    def __init__(self, file: PlainDockerfile, args: Mapping[str, str], parse: Parse) -> None:
        """Read `file`; raise `SandboxUnsupportedError` if `parse` does not support it."""
        self.steps: list[BuildStep] = []
        self._user, self._workdir = "root", "/"
        self._arguments = set[str]()
        """The variables that exist in the build only."""
        self._known: dict[str, str] = {}
        self._globals: dict[str, str] = {}
        self._given, self._kinds = args, iter(file.variables)
        try:
            with redirect_stdout(StringIO()):  # an SDK may print its warnings
                base = parse(file.text, self)
        except ValueError as error:
            raise SandboxUnsupportedError(
                f"this sandbox cannot build the Dockerfile: {error}",
                hint="build the image elsewhere, push it to a registry, and name it in the task",
            ) from error
        self.base = _expand(base, self._globals)
        # A parser may end with the user and the workdir of its cloud's own images.
        self._user = self._user if file.has_user else ""
        self._workdir = self._workdir if file.has_workdir else ""

    def image(self, env: Mapping[str, str]) -> ImageConfig:
        """Return the configuration of the image, by the variables of a process of its build."""
        kept = {name: value for name, value in env.items() if name not in self._arguments}
        return ImageConfig(kept, self._user, self._workdir)

    def run_cmd(self, command: str, user: str | None = None) -> "DockerfileSteps":
        """Add RUN."""
        who = user or self._user
        if not _NAME.fullmatch(who):
            raise SandboxUnsupportedError(
                f"this sandbox cannot run a step of a Dockerfile as the user {who!r}",
                hint="name a user without a group, or put RUN before USER",
            )
        self.steps.append(RunStep(command, who))
        return self

    def copy(
        self,
        src: str,
        dest: str,
        force_upload: None = None,
        user: str | None = None,
        mode: int | None = None,
        **_: object,
    ) -> "DockerfileSteps":
        """Add COPY. Files without an owner are root's."""
        del force_upload
        to = _expand(dest, self._known)
        slash = "/" if to.endswith(("/", "/.")) or to == "." else ""
        to = posixpath.normpath(posixpath.join(self._workdir, to)).rstrip("/") + slash
        source = posixpath.normpath(f"/{_expand(src, self._known)}").lstrip("/")
        owner = _expand(user or "root:root", self._known)
        self.steps.append(CopyStep(source, to, owner, mode))
        return self

    def set_workdir(self, workdir: str) -> "DockerfileSteps":
        """Add WORKDIR, which may be relative to the one before."""
        path = posixpath.normpath(posixpath.join(self._workdir, _expand(workdir, self._known)))
        self._workdir = path
        self.steps.append(WorkdirStep(path))
        return self

    def set_user(self, user: str) -> "DockerfileSteps":
        """Read USER. The build stays that of root, because a builder may create the user."""
        self._user = _expand(user, self._known)
        return self

    def set_envs(self, envs: Mapping[str, str]) -> "DockerfileSteps":
        """Add ENV and ARG, which a parser may not tell apart."""
        kind, is_global = next(self._kinds)
        for name, text in envs.items():
            value = _expand(text, self._globals if is_global else self._known)
            if kind == "ARG":
                if name in self._known and name not in self._arguments:
                    continue  # ENV has the precedence
                value = self._given.get(name) or value or self._globals.get(name, "")
                self._arguments.add(name)
            else:
                self._arguments.discard(name)
            (self._globals if is_global else self._known)[name] = value
            if not is_global:
                self.steps.append(EnvStep(name, value))
        return self

    def set_start_cmd(self, start_cmd: str, ready_cmd: object) -> "DockerfileSteps":
        """Ignore CMD and ENTRYPOINT, which no sandbox of BenchFlow starts by itself."""
        del start_cmd, ready_cmd
        return self


class ImageSteps:
    """The steps of a planned image: its Dockerfile, the bundles, the variables and the link."""

    def __init__(self, plan: ImagePlan, parse: Parse) -> None:
        self._plan, self._parse = plan, parse

    @cached_property
    def _dockerfile(self) -> DockerfileSteps | None:
        recipe, context = self._plan.recipe, self._plan.context
        if recipe is None or context is None:
            return None
        return DockerfileSteps(PlainDockerfile.of(recipe, context), dict(recipe.args), self._parse)

    @property
    def base(self) -> str:
        """The image that the steps start from.

        Raises:
            SandboxUnsupportedError: The Dockerfile cannot be built step by step.
        """
        return self._plan.source if self._dockerfile is None else self._dockerfile.base

    def image(self, env: Mapping[str, str]) -> ImageConfig:
        """Return the configuration of the image, by the variables of its build."""
        return ImageConfig(env) if self._dockerfile is None else self._dockerfile.image(env)

    def stage(self, scratch: Path) -> list[BuildStep]:
        """Return the steps, which run as root. Copy the files of the context to `scratch`."""
        steps = list[BuildStep]()
        if self._dockerfile is not None and self._plan.context is not None:
            stage_context(self._plan.context, scratch)
            steps.append(WorkdirStep("/"))
            for step in self._dockerfile.steps:
                steps.append(replace(step, root=scratch) if isinstance(step, CopyStep) else step)
        steps += [CopyStep("", to, root=Path(source)) for source, to in self._plan.bundles]
        link = CopyStep("", PROGRAM, mode=0o755, root=link_path())
        return [*steps, RunStep(SAVE_ENVIRONMENT, "root"), link]


def _expand(text: str, known: Mapping[str, str]) -> str:
    """Replace known variables; the builder of the cloud expands the others."""
    return _VARIABLE.sub(lambda match: known.get(match[1] or match[2], match[0]), text)
