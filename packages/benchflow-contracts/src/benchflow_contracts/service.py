"""Services: containers beside the sandbox's own, in a network that they share."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from pydantic import Field, model_validator

from ._model import Model
from .image import ImageRecipe
from .limits import ResourceLimits

MAIN = "main"
"""What services call the sandbox itself."""

SERVICE_NAME = r"^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$"

ServiceCondition = Literal["started", "healthy", "completed"]
"""What a dependent waits for. `completed` is an end with exit code 0."""


class ServiceHealth(Model):
    """How a service is found healthy, as in a Dockerfile's HEALTHCHECK."""

    test: tuple[str, ...] = Field(min_length=1)
    """`CMD` and an argument vector, or `CMD-SHELL` and a line; `NONE` switches the image's
    own off. As the engine's API has it."""
    interval_sec: float = Field(default=30, gt=0)
    timeout_sec: float = Field(default=30, gt=0)
    start_period_sec: float = Field(default=0, ge=0)
    retries: int = Field(default=3, ge=1)


class ServiceSpec(Model):
    """One container beside the sandbox's own. The agent reaches it by its name.

    It has the network of the sandbox and no way to the model. What it may do to the host is
    what the sandbox may.
    """

    name: str = Field(pattern=SERVICE_NAME)
    image: str | None = None
    recipe: ImageRecipe | None = None
    """One of both makes its image."""
    entrypoint: tuple[str, ...] | None = None
    """`None` is the image's own."""
    command: tuple[str, ...] | None = None
    """`None` is the image's own."""
    env: Mapping[str, str] = {}
    user: str = ""
    """`""` is the image's own."""
    workdir: str = ""
    """`""` is the image's own."""
    aliases: tuple[str, ...] = ()
    """Further names in the network."""
    needs: Mapping[str, ServiceCondition] = {}
    """What must be so of other services, or of `main`, before it starts."""
    health: ServiceHealth | None = None
    """`None` is the image's own, if it has one."""
    volumes: Mapping[str, str] = {}
    """Names of the sandbox's own volumes, by absolute path inside. Empty at first."""
    files: Mapping[str, Path] = {}
    """Files and directories of the task on the host, shown read-only, by path inside."""
    tmpfs: tuple[str, ...] = ()
    restarts: int = Field(default=0, ge=0)
    """How often it is started again after an end with another exit code than 0."""
    limits: ResourceLimits = ResourceLimits()

    @model_validator(mode="after")
    def _is_made_of_something(self) -> "ServiceSpec":
        if (self.image is None) == (self.recipe is None):
            raise ValueError(f"service {self.name!r} needs an image or a recipe")
        if self.name == MAIN:
            raise ValueError(f"{MAIN!r} is the sandbox itself")
        return self


@runtime_checkable
class ServicedSandbox(Protocol):
    """What a sandbox can do that has services."""

    async def service_exec(
        self,
        service: str,
        cmd: str | Sequence[str],
        *,
        user: str | None = None,
        timeout: float | None = None,
    ) -> int:
        """Run a command in a service, and return its exit code. Its output is dropped.

        Raises:
            SandboxTimeoutError: The time ran out; the command may go on.
            SandboxError: There is no such service, or it does not run.
        """
        ...

    async def service_download(
        self, service: str, remote: str, local: Path, *, max_bytes: int = 1 << 30
    ) -> None:
        """Copy a file or a directory tree out of a service, as `Sandbox.download` does."""
        ...
