"""What the instructions of one stage have made of it so far."""

import platform
import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchflow_contracts.errors import TaskError
from benchflow_sandbox_core.image_config import ImageConfig

from benchflow_sandbox_local.rootfs.source import RootSource
from benchflow_sandbox_local.rootfs.store import digest_of

from .dockerfile import Instruction
from .words import Words

SHELL = ("/bin/sh", "-c")
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
_PLATFORM = {
    **{f"{kind}PLATFORM": f"linux/{ARCHITECTURE}" for kind in ("TARGET", "BUILD")},
    **{f"{kind}OS": "linux" for kind in ("TARGET", "BUILD")},
    **{f"{kind}ARCH": ARCHITECTURE for kind in ("TARGET", "BUILD")},
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def global_arguments() -> dict[str, str]:
    """Return what may be used before the first FROM."""
    return dict(_PLATFORM)


@dataclass(slots=True)
class Stage:
    """The state between two instructions."""

    key: str
    """Everything that made its files."""
    lowers: tuple[Path, ...]
    """Top first."""
    complete: bool
    escape: str
    given: Mapping[str, str]
    """The values of arguments from before the first FROM."""
    env: dict[str, str]
    user: str
    workdir: str
    entrypoint: tuple[str, ...]
    args: dict[str, str] = field(default_factory=dict[str, str])
    shell: tuple[str, ...] = SHELL

    @classmethod
    def on(cls, source: RootSource, escape: str, given: Mapping[str, str]) -> "Stage":
        """Begin a stage on an image."""
        config = source.config
        return cls(
            key=digest_of("stage", source.key),
            lowers=source.lowers,
            complete=source.complete,
            escape=escape,
            given=given,
            env=dict(config.env),
            user=config.user,
            workdir=config.workdir,
            entrypoint=config.entrypoint,
        )

    @classmethod
    def scratch(cls, escape: str, given: Mapping[str, str]) -> "Stage":
        """Begin a stage on nothing."""
        return cls(digest_of("scratch"), (), True, escape, given, {}, "", "", ())

    def child(self) -> "Stage":
        """Begin another stage on what this one is."""
        return Stage(
            self.key,
            self.lowers,
            self.complete,
            self.escape,
            self.given,
            dict(self.env),
            self.user,
            self.workdir,
            self.entrypoint,
        )

    @property
    def config(self) -> ImageConfig:
        """What an image of it says."""
        return ImageConfig(self.env, self.user, self.workdir, self.entrypoint)

    def source(self, path: Path) -> RootSource:
        """Return what boxes of it are made from; the image's own variables are not set there."""
        return RootSource(path, self.complete, self.lowers, made=self.key)

    @property
    def variables(self) -> dict[str, str]:
        """What RUN sees, and `$NAME` means."""
        return {**self.args, **self.env}

    def words(self, where: str) -> Words:
        """Return the reader of an instruction's words."""
        return Words(self.variables, where, self.escape)

    def apply(self, one: Instruction, where: str) -> None:
        """Take in an instruction that changes no file."""
        if one.name in _SETTERS:
            _SETTERS[one.name](self, one, where)

    def path(self, text: str) -> str:
        """Return an absolute path inside, from the working directory."""
        return posixpath.normpath(posixpath.join("/", self.workdir, text))


def _env(stage: Stage, one: Instruction, where: str) -> None:
    stage.env.update(stage.words(where).pairs(one.text))


def declare(
    args: dict[str, str], given: Mapping[str, str], one: Instruction, words: Words, where: str
) -> None:
    """Take in an ARG: its own default, or what was given under its name."""
    for word in words.split(one.text):
        name, equals, value = word.partition("=")
        if not _NAME.fullmatch(name):
            raise TaskError(f"{name[:80]!r} is no name of an argument", where=where)
        if equals:
            args[name] = value
        elif name in given:
            args[name] = given[name]


def _arg(stage: Stage, one: Instruction, where: str) -> None:
    declare(stage.args, {**_PLATFORM, **stage.given}, one, stage.words(where), where)


def _user(stage: Stage, one: Instruction, where: str) -> None:
    stage.user = stage.words(where).one(one.text)


def _entrypoint(stage: Stage, one: Instruction, _where: str) -> None:
    stage.entrypoint = (*stage.shell, one.text) if one.array is None else one.array


def _shell(stage: Stage, one: Instruction, where: str) -> None:
    if not one.array:
        raise TaskError("SHELL needs a JSON array", where=where)
    stage.shell = one.array


_SETTERS: dict[str, Callable[[Stage, Instruction, str], None]] = {
    "ENV": _env,
    "ARG": _arg,
    "USER": _user,
    "ENTRYPOINT": _entrypoint,
    "SHELL": _shell,
}
"""CMD, LABEL, EXPOSE, VOLUME, HEALTHCHECK and the like mean nothing to a sandbox."""
