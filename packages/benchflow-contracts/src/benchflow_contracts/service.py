"""Services: containers beside the sandbox's own, in a network that they share."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ._model import Model
from .container import ContainerOptions
from .image import ImageRecipe
from .limits import ResourceLimits

MAIN = "main"
"""What services call the sandbox itself."""

SERVICE_NAME = r"^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$"


class ServiceHealth(Model):
    """How a service is found healthy, as in a Dockerfile's HEALTHCHECK."""

    test: tuple[str, ...] = Field(min_length=1)
    """`CMD` and an argument vector, or `CMD-SHELL` and a line; `NONE` switches the image's
    own off. As the engine's API has it."""
    interval_sec: float = Field(default=30, gt=0)
    timeout_sec: float = Field(default=30, gt=0)
    start_period_sec: float = Field(default=0, ge=0)
    start_interval_sec: float | None = Field(default=None, gt=0)
    """Between the tries within the start period; an older engine takes `interval_sec`."""
    retries: int = Field(default=3, ge=1)


class ServiceSpec(ContainerOptions):
    """One container beside the sandbox's own. Who shares a network reaches it by its name.

    It reaches what the sandbox may reach and no model. What it may do to the host is
    what the sandbox may.
    """

    name: str = Field(pattern=SERVICE_NAME)
    image: str | None = None
    recipe: ImageRecipe | None = None
    """One of both makes its image."""
    env: Mapping[str, str] = {}
    network_of: str | None = None
    """The container whose network it is in, a service or `main`, instead of `networks`; `""` is
    nobody's: it reaches and is reached by none."""
    health: ServiceHealth | None = None
    """`None` is the image's own, if it has one."""
    tmpfs: tuple[str, ...] = ()
    read_only: bool = False
    """Whether its root is; volumes and `tmpfs` are not."""
    restarts: Annotated[int, Field(ge=0)] | Literal["always"] = 0
    """How often it is started again after an end with another exit code than 0; `always` is after
    each end, for as long as the sandbox is there. It keeps its files then."""
    limits: ResourceLimits = ResourceLimits()

    @model_validator(mode="after")
    def _is_made_of_something(self) -> "ServiceSpec":
        if (self.image is None) == (self.recipe is None):
            raise ValueError(f"service {self.name!r} needs an image or a recipe")
        if self.name == MAIN:
            raise ValueError(f"{MAIN!r} is the sandbox itself")
        return self
