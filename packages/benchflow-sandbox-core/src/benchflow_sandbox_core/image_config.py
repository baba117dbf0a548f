"""The configuration of an image: its entrypoint, user and working directory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, cast

from benchflow_contracts.container import ContainerOptions
from benchflow_contracts.errors import SandboxError
from benchflow_contracts.sandbox import SandboxSpec

from .image_health import ImageHealth

IDLE = ("sh", "-c", "sleep infinity")
"""The arguments of an image's own entrypoint; Harbor passes the same ones."""


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """The part of an OCI image's `config` that a sandbox uses."""

    env: Mapping[str, str] = field(default_factory=dict[str, str])
    user: str = ""
    """A name or a number, or `USER:GROUP`. "" is root."""
    workdir: str = ""
    """"" is `/`."""
    entrypoint: tuple[str, ...] = ()
    shell: tuple[str, ...] = ()
    """The shell for RUN in images built from this one; empty is `/bin/sh -c`."""
    health: ImageHealth | None = None
    """The image's HEALTHCHECK, if it has one."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Read an image's `config`, which its author wrote.

        Source: the OCI image specification 1.1, `config.md`.

        Raises:
            SandboxError: A field has a wrong type.
        """
        pairs = [text.partition("=") for text in _texts(config, "Env")]
        workdir, user = config.get("WorkingDir") or "", config.get("User") or ""
        if not isinstance(workdir, str) or not isinstance(user, str):
            raise SandboxError("the image's WorkingDir or User is not a string")
        return cls(
            env={key: value for key, _, value in pairs},
            user=user,
            workdir=workdir,
            entrypoint=tuple(_texts(config, "Entrypoint")),
            shell=tuple(_texts(config, "Shell")),
            health=ImageHealth.of(config.get("Healthcheck")),
        )

    def encode(self) -> dict[str, Any]:
        """Return the fields as `of` reads them."""
        return {
            "Env": [f"{key}={value}" for key, value in self.env.items()],
            "User": self.user,
            "WorkingDir": self.workdir,
            "Entrypoint": list(self.entrypoint),
            **({"Shell": list(self.shell)} if self.shell else {}),
            **({"Healthcheck": self.health.encode()} if self.health else {}),
        }

    def command(self, options: ContainerOptions) -> tuple[str, ...]:
        """Return the command of `entrypoint = "image"`; empty if it would only sleep."""
        entrypoint = self.entrypoint if options.entrypoint is None else options.entrypoint
        if not entrypoint and options.command is None:
            return ()
        return (*entrypoint, *(IDLE if options.command is None else options.command))

    def fill(self, spec: SandboxSpec) -> SandboxSpec:
        """Return `spec` with the image's user and working directory where it has `""`."""
        own = {"user": self.user or "root", "workdir": self.workdir or "/"}
        update = {name: value for name, value in own.items() if not getattr(spec, name)}
        return spec.model_copy(update=update) if update else spec


def _texts(config: Mapping[str, Any], key: str) -> list[str]:
    value: object = config.get(key) or []
    if isinstance(value, Sequence) and not isinstance(value, str):
        texts = cast("Sequence[object]", value)
        if all(isinstance(text, str) and "\0" not in text for text in texts):
            return [str(text) for text in texts]
    raise SandboxError(f"the image's {key} is not a list of strings")
