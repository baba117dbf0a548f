"""The configuration of the sandbox provider `benchflow` in Inspect."""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from benchflow_contracts import (
    ContainerOptions,
    ImageRecipe,
    NetworkMode,
    ResourceLimits,
    SandboxSpec,
    ServiceSpec,
    UsageError,
)
from pydantic import BaseModel, ConfigDict, ValidationError

DOCKERFILE = "Dockerfile"
SETTINGS_FILE = "benchflow-sandbox.toml"
COMPOSE_FILES = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
PROVIDER_VARIABLE = "BENCHFLOW_INSPECT_PROVIDER"
"""The provider if the configuration does not name one."""
SETTINGS_VARIABLE = "BENCHFLOW_INSPECT_SANDBOX"
"""A TOML file that replaces the configuration of every task and sample."""

_MORE_OUTPUT = 64 * 1024 * 1024
"""Inspect raises the limit of one command above 10 MiB for its own requests."""


class BenchflowSandboxConfig(BaseModel):
    """The settings of a sandbox, as a TOML file or as the `config` of a `SandboxEnvironmentSpec`.

    Without `image` and `dockerfile`, the provider's default image is used, with the user `agent`
    and the working directory `/workspace`. With one of them, the defaults are the image's own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    provider: str | None = None
    """A registry name. Default: `docker` for an image, else `$BENCHFLOW_INSPECT_PROVIDER`, then
    `local`."""
    allow_unisolated: bool = False
    image: str | None = None
    dockerfile: str | None = None
    """A path. Its directory is the build context."""
    workdir: str | None = None
    user: str | None = None
    env: Mapping[str, str] = {}
    network: NetworkMode = "none"
    allowed_hosts: tuple[str, ...] = ()
    memory_mb: int | None = None
    cpus: float | None = None
    services: tuple[ServiceSpec, ...] = ()
    """Containers beside the sandbox, of a compose file; a TOML file has none."""
    main: ContainerOptions = ContainerOptions()
    """Networks of the sandbox, and the services that it waits for."""
    inner_networks: frozenset[str] = frozenset()
    """Networks of the services without a way out."""
    agent: str | None = None
    """The agent that `bf_agent` runs in the sandbox. Its programs are part of the sandbox."""
    agent_model: str | None = None
    """The model that the agent asks for. The default is the agent's own."""

    def __hash__(self) -> int:
        # Inspect puts configurations into sets, and `env` is a dict.
        return hash(self.model_dump_json())

    @classmethod
    def of(cls, config: BaseModel | str | None) -> Self:
        """Read the configuration of an Inspect task: a file, an image name, or a model.

        The file that `$BENCHFLOW_INSPECT_SANDBOX` names replaces each of them.

        Raises:
            UsageError: The file or the model is malformed.
        """
        replacement = os.environ.get(SETTINGS_VARIABLE)
        if replacement:
            return cls.read(Path(replacement))
        if config is None:
            return cls()
        if isinstance(config, cls):
            return config
        if isinstance(config, BaseModel):
            return cls._of_compose(config)
        path = Path(config)
        if path.suffix == ".toml":
            return cls.read(path)
        if path.suffix in {".yaml", ".yml"}:
            return cls._of_compose(path)
        if path.stem == DOCKERFILE or path.suffix == f".{DOCKERFILE}":
            return cls(dockerfile=str(path.absolute()))
        return cls(image=config)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a TOML file. A relative `dockerfile` is beside the file."""
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
            settings = cls.model_validate(table)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ValidationError) as error:
            raise UsageError(f"{path} is not a sandbox configuration: {error}") from error
        if settings.dockerfile is None:
            return settings
        dockerfile = str(path.absolute().parent / settings.dockerfile)
        return settings.model_copy(update={"dockerfile": dockerfile})

    @classmethod
    def _of_compose(cls, config: BaseModel | Path) -> Self:
        # The reader of compose files is Inspect's own, of the extra.
        from .compose import read_compose  # noqa: PLC0415

        return cls.model_validate(read_compose(config))

    def provider_name(self) -> str:
        """Return the name of the provider."""
        if self.provider is not None:
            return self.provider
        if self.image is not None or self.dockerfile is not None:
            return "docker"
        return os.environ.get(PROVIDER_VARIABLE) or "local"

    def spec(self, *, output_bytes: int) -> SandboxSpec:
        """Return the spec of the sandbox, whose commands may write at least `output_bytes`."""
        own = self.image is not None or self.dockerfile is not None
        limits: dict[str, Any] = {"memory_mb": self.memory_mb, "cpus": self.cpus}
        recipe = None
        if self.dockerfile is not None:
            path = Path(self.dockerfile)
            recipe = ImageRecipe(context=path.parent, dockerfile=path.name)
        return SandboxSpec(
            image=self.image,
            recipe=recipe,
            workdir=("" if own else "/workspace") if self.workdir is None else self.workdir,
            user=("" if own else "agent") if self.user is None else self.user,
            env=self.env,
            network=self.network,
            allowed_hosts=self.allowed_hosts,
            limits=ResourceLimits(**limits, output_bytes=max(output_bytes, _MORE_OUTPUT)),
            services=self.services,
            container=self.main,
            inner_networks=self.inner_networks,
        )
