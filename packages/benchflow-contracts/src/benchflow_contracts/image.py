"""What an image is made from."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from ._model import Model

PullPolicy = Literal["missing", "always", "never"]
"""When a provider fetches images and the bases of recipes: `always` is once per run."""


class ImageRecipe(Model):
    """A directory with a Dockerfile, from which a provider makes an image.

    The context is the task's: nothing in it is trusted, and links in it are not followed.
    The same bytes make an image once on a machine.
    """

    context: Path
    """An absolute host directory."""
    dockerfile: str = "Dockerfile"
    """Relative to `context`."""
    inline: str = ""
    """The text of the Dockerfile, where it is no file: `dockerfile` is what that is called then."""
    args: tuple[tuple[str, str], ...] = ()
    """Values of `ARG`, by name."""
    target: str = ""
    """The stage that is made; `""` is the last."""
    timeout_sec: float = Field(default=600, gt=0)
    """For one build; one that is found made already takes none of it."""
