"""How an image is built."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from ._model import RareModel

PullPolicy = Literal["missing", "always", "never"]
"""When a provider pulls images and the base images of recipes. `always`: once per run."""


class ImageRecipe(RareModel):
    """A directory with a Dockerfile, from which a provider builds an image.

    The context belongs to the task: it is not trusted, and links in it are not followed. Equal
    bytes are built once on a machine.
    """

    context: Path
    """An absolute host directory."""
    dockerfile: str = "Dockerfile"
    """Relative to `context`."""
    inline: str = ""
    """The text of the Dockerfile, if it is not a file. `dockerfile` is then only its name."""
    args: tuple[tuple[str, str], ...] = ()
    """Values of `ARG`, by name."""
    target: str = ""
    """The stage to build; `""` is the last one."""
    timeout_sec: float = Field(default=600, gt=0)
    """For one build. An image that exists already needs no time."""
