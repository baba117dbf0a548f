"""The steps of a Dockerfile, as E2B's SDK reads them, with Docker's meaning."""

import posixpath
import re
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from benchflow_contracts.errors import SandboxUnsupportedError
from benchflow_sandbox_remote import PlainDockerfile
from e2b.template.dockerfile_parser import parse_dockerfile  # pyright: ignore[reportMissingTypeStubs]

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_NAME = re.compile(r"[a-z_][a-z0-9_-]*", re.IGNORECASE)


class DockerfileSteps:
    """Records the calls of the SDK's parser, for a builder.

    The SDK's own conversion has another meaning than Docker: it starts the entrypoint in the build,
    gives files of COPY to the present user, keeps the arguments of a build as variables, and does
    not expand variables that are set before.
    """

    def __init__(self, file: PlainDockerfile, args: Mapping[str, str]) -> None:
        """Read `file`; raise `SandboxUnsupportedError` if E2B cannot build it."""
        self.user, self.workdir = "root", "/"
        self.arguments = set[str]()
        """The variables that exist in the build only."""
        self._calls: list[Callable[[Any, str], object]] = []
        self._known: dict[str, str] = {}
        self._globals: dict[str, str] = {}
        self._given, self._kinds = args, iter(file.variables)
        try:
            with redirect_stdout(StringIO()):  # the SDK prints its warnings
                base = parse_dockerfile(file.text, self)  # type: ignore[arg-type]
        except ValueError as error:
            raise SandboxUnsupportedError(
                f"E2B cannot build the Dockerfile: {error}",
                hint="build the image elsewhere, push it to a registry, and name it in the task",
            ) from error
        self.base = _expand(base, self._globals)
        # The SDK ends with the user and the workdir of E2B's own images.
        self.user = self.user if file.has_user else ""
        self.workdir = self.workdir if file.has_workdir else ""

    def replay(self, builder: Any, context: str) -> None:  # noqa: ANN401 - a `TemplateBuilder`
        """Add the steps to a builder. `context` is the path of the files, relative to its own."""
        builder.set_user("root")
        builder.set_workdir("/")
        for call in self._calls:
            call(builder, context)

    def run_cmd(self, command: str, user: str | None = None) -> "DockerfileSteps":
        """Record RUN. E2B runs it by bash as a login shell."""
        who = user or self.user
        if not _NAME.fullmatch(who):
            raise SandboxUnsupportedError(
                f"E2B cannot run a step of a Dockerfile as the user {who!r}",
                hint="name a user without a group, or put RUN before USER",
            )
        self._calls.append(lambda builder, _: builder.run_cmd(command, user=who))
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
        """Record COPY. Files without an owner are root's."""
        del force_upload
        to = _expand(dest, self._known)
        slash = "/" if to.endswith(("/", "/.")) or to == "." else ""
        to = posixpath.normpath(posixpath.join(self.workdir, to)).rstrip("/") + slash
        who = _expand(user or "root:root", self._known)
        source = posixpath.normpath(f"/{_expand(src, self._known)}").lstrip("/")
        self._calls.append(
            lambda builder, context: builder.copy(
                posixpath.join(context, source).rstrip("/"), to, user=who, mode=mode
            )
        )
        return self

    def set_workdir(self, workdir: str) -> "DockerfileSteps":
        """Record WORKDIR, which may be relative to the one before."""
        path = posixpath.normpath(posixpath.join(self.workdir, _expand(workdir, self._known)))
        self.workdir = path
        self._calls.append(lambda builder, _: builder.set_workdir(path))
        return self

    def set_user(self, user: str) -> "DockerfileSteps":
        """Record USER. The build stays that of root, because E2B would create the user."""
        self.user = _expand(user, self._known)
        return self

    def set_envs(self, envs: Mapping[str, str]) -> "DockerfileSteps":
        """Record ENV and ARG, which the parser does not tell apart."""
        kind, is_global = next(self._kinds)
        for name, text in envs.items():
            value = _expand(text, self._globals if is_global else self._known)
            if kind == "ARG":
                if name in self._known and name not in self.arguments:
                    continue  # ENV has the precedence
                value = self._given.get(name) or value or self._globals.get(name, "")
                self.arguments.add(name)
            else:
                self.arguments.discard(name)
            (self._globals if is_global else self._known)[name] = value
            if not is_global:
                self._set_env(name, value)
        return self

    def _set_env(self, name: str, value: str) -> None:
        self._calls.append(lambda builder, _: builder.set_envs({name: value}))

    def set_start_cmd(self, start_cmd: str, ready_cmd: object) -> "DockerfileSteps":
        """Ignore CMD and ENTRYPOINT, which no sandbox of BenchFlow starts by itself."""
        del start_cmd, ready_cmd
        return self


def _expand(text: str, known: Mapping[str, str]) -> str:
    """Replace known variables; E2B expands the others."""
    return _VARIABLE.sub(lambda match: known.get(match[1] or match[2], match[0]), text)
