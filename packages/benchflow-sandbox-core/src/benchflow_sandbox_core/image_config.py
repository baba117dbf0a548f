"""What an image says of its own processes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, cast

from benchflow_contracts.container import ContainerOptions
from benchflow_contracts.errors import SandboxError
from benchflow_contracts.sandbox import SandboxSpec

from .image_health import ImageHealth

IDLE = ("sh", "-c", "sleep infinity")
"""The arguments of an image's own entrypoint, as Harbor gives them."""


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """The part of an OCI image's `config` that a sandbox honours."""

    env: Mapping[str, str] = field(default_factory=dict[str, str])
    user: str = ""
    """A name or number, maybe with `:` and a group. Empty is root."""
    workdir: str = ""
    """Empty is `/`."""
    entrypoint: tuple[str, ...] = ()
    shell: tuple[str, ...] = ()
    """What runs the shell form of RUN in images that are made from it; empty is `/bin/sh -c`."""
    health: ImageHealth | None = None
    """When what the entrypoint starts is ready, if the image says so."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Read an image's `config`, which its author wrote.

        Source: the OCI image specification 1.1, `config.md`.

        Raises:
            SandboxError: A field is not of its type.
        """
        pairs = [text.partition("=") for text in _texts(config, "Env")]
        workdir, user = config.get("WorkingDir") or "", config.get("User") or ""
        if not isinstance(workdir, str) or not isinstance(user, str):
            raise SandboxError("the image's WorkingDir or User is no text")
        return cls(
            env={key: value for key, _, value in pairs},
            user=user,
            workdir=workdir,
            entrypoint=tuple(_texts(config, "Entrypoint")),
            shell=tuple(_texts(config, "Shell")),
            health=ImageHealth.of(config.get("Healthcheck")),
        )

    def encode(self) -> dict[str, Any]:
        """Return what `of` reads."""
        return {
            "Env": [f"{key}={value}" for key, value in self.env.items()],
            "User": self.user,
            "WorkingDir": self.workdir,
            "Entrypoint": list(self.entrypoint),
            **({"Shell": list(self.shell)} if self.shell else {}),
            **({"Healthcheck": self.health.encode()} if self.health else {}),
        }

    def command(self, given: ContainerOptions) -> tuple[str, ...]:
        """Return what `entrypoint = "image"` runs; empty when that would only idle."""
        entrypoint = self.entrypoint if given.entrypoint is None else given.entrypoint
        if not entrypoint and given.command is None:
            return ()
        return (*entrypoint, *(IDLE if given.command is None else given.command))

    def fill(self, spec: SandboxSpec) -> SandboxSpec:
        """Return the spec with the image's own user and working directory where it asks so."""
        own = {"user": self.user or "root", "workdir": self.workdir or "/"}
        update = {name: value for name, value in own.items() if not getattr(spec, name)}
        return spec.model_copy(update=update) if update else spec


def _texts(config: Mapping[str, Any], key: str) -> list[str]:
    found: object = config.get(key) or []
    if isinstance(found, Sequence) and not isinstance(found, str):
        texts = cast("Sequence[object]", found)
        if all(isinstance(text, str) and "\0" not in text for text in texts):
            return [str(text) for text in texts]
    raise SandboxError(f"the image's {key} is no list of texts")
