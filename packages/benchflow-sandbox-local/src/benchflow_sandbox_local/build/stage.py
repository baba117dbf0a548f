"""The state of one stage between two instructions."""

import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchflow_contracts.errors import TaskError
from benchflow_sandbox_core.image_config import ImageConfig
from benchflow_sandbox_core.image_health import ImageHealth
from benchflow_sandbox_core.recipe.dockerfile import Instruction
from benchflow_sandbox_core.recipe.scope import Scope

from benchflow_sandbox_local.rootfs.source import RootSource
from benchflow_sandbox_local.rootfs.store import digest_of


@dataclass(slots=True)
class Stage:
    """One stage of a build after some of its instructions."""

    key: str
    """The key of the stage's files: a digest of the base and the instructions so far."""
    lowers: tuple[Path, ...]
    """Top first."""
    complete: bool
    scope: Scope
    user: str
    workdir: str
    entrypoint: tuple[str, ...]
    health: ImageHealth | None = None

    @classmethod
    def on(cls, source: RootSource, before: Scope) -> "Stage":
        """Begin a stage on an image."""
        config = source.config
        return cls(
            key=digest_of("stage", source.key),
            lowers=source.lowers,
            complete=source.complete,
            scope=before.stage(config.env, config.shell),
            user=config.user,
            workdir=config.workdir,
            entrypoint=config.entrypoint,
            health=config.health,
        )

    @classmethod
    def scratch(cls, before: Scope) -> "Stage":
        """Begin a stage on an empty root."""
        return cls(digest_of("scratch"), (), True, before.stage({}), "", "", ())

    def child(self) -> "Stage":
        """Begin another stage on this one."""
        return Stage(
            self.key,
            self.lowers,
            self.complete,
            self.scope.child(),
            self.user,
            self.workdir,
            self.entrypoint,
            self.health,
        )

    @property
    def config(self) -> ImageConfig:
        """The configuration of an image of this stage."""
        return ImageConfig(
            self.scope.env,
            self.user,
            self.workdir,
            self.entrypoint,
            self.scope.shell,
            self.health,
        )

    def source(self, path: Path) -> RootSource:
        """Return the source for sandboxes of this stage, without the image's variables."""
        return RootSource(path, self.complete, self.lowers, store_key=self.key)

    def apply(self, instruction: Instruction, where: str) -> None:
        """Apply an instruction that changes no file."""
        self.scope.apply(instruction, where)
        if instruction.name in _SETTERS:
            _SETTERS[instruction.name](self, instruction, where)

    def path(self, text: str) -> str:
        """Return an absolute path inside, from the working directory."""
        return posixpath.normpath(posixpath.join("/", self.workdir, text))


def _user(stage: Stage, instruction: Instruction, where: str) -> None:
    stage.user = stage.scope.words(where).resolve(instruction.text)


def _entrypoint(stage: Stage, instruction: Instruction, _where: str) -> None:
    stage.entrypoint = (
        (*stage.scope.shell, instruction.text) if instruction.array is None else instruction.array
    )


def _health(stage: Stage, instruction: Instruction, where: str) -> None:
    try:
        stage.health = ImageHealth.instruction(instruction.flags, instruction.text)
    except ValueError as error:
        raise TaskError(str(error), where=where) from error


_SETTERS: dict[str, Callable[[Stage, Instruction, str], None]] = {
    "USER": _user,
    "ENTRYPOINT": _entrypoint,
    "HEALTHCHECK": _health,
}
"""Other instructions, such as CMD, LABEL, EXPOSE and VOLUME, do not change a sandbox."""
