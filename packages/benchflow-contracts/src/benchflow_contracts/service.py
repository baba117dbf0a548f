"""Services: containers beside the sandbox, in a shared network."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ._model import RareModel
from .container import ContainerOptions
from .image import ImageRecipe
from .limits import ResourceLimits

MAIN = "main"
"""The name of the sandbox itself among its services."""

SERVICE_NAME = r"^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$"


class ServiceHealth(RareModel):
    """The health check of a service, as HEALTHCHECK in a Dockerfile."""

    test: tuple[str, ...] = Field(min_length=1)
    """`CMD` and an argument vector, or `CMD-SHELL` and a line, as in the engine's API. `NONE` turns
    the image's own check off."""
    interval_sec: float = Field(default=30, gt=0)
    timeout_sec: float = Field(default=30, gt=0)
    start_period_sec: float = Field(default=0, ge=0)
    start_interval_sec: float | None = Field(default=None, gt=0)
    """Between checks in the start period. An older engine uses `interval_sec` instead."""
    retries: int = Field(default=3, ge=1)


class ServiceSpec(ContainerOptions):
    """One container beside the sandbox. Containers of the same network reach it by its name.

    It may reach the same addresses as the sandbox, except for doors, and has the same rights on the
    host.
    """

    name: str = Field(pattern=SERVICE_NAME)
    image: str | None = None
    recipe: ImageRecipe | None = None
    """The image is made from this if `image` is `None`. Exactly one of them is set."""
    env: Mapping[str, str] = {}
    network_of: str | None = None
    """The service, or `main`, whose network this container joins, instead of `networks`. `""`: the
    container has no network."""
    health: ServiceHealth | None = None
    """`None`: the health check of the image, if there is one."""
    tmpfs: tuple[str, ...] = ()
    read_only: bool = False
    """Whether the root file system is read-only. Volumes and `tmpfs` are writable."""
    restarts: Annotated[int, Field(ge=0)] | Literal["always"] = 0
    """How often the service is restarted after an exit code other than 0. `always`: after each end,
    until the sandbox is deleted. A restart keeps the files."""
    limits: ResourceLimits = ResourceLimits()

    @model_validator(mode="after")
    def _is_made_of_something(self) -> "ServiceSpec":
        if (self.image is None) == (self.recipe is None):
            raise ValueError(f"service {self.name!r} needs an image or a recipe")
        if self.name == MAIN:
            raise ValueError(f"{MAIN!r} is the sandbox itself")
        return self
