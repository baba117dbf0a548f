"""What a live image is, besides its files."""

from dataclasses import dataclass

from .carried import Carried


@dataclass(frozen=True, slots=True)
class LiveState:
    """The processes of one instant, as the engine wrote them down."""

    name: str
    """Where the launcher keeps them."""
    bytes: int
    """Of all files there: with fewer or more it is not that image any more."""
    processes: tuple[Carried, ...]
    mounts: tuple[tuple[str, str], ...]
    """Host directory and place inside, of everything that is shown from outside."""
    port: int | None
    """The relay's, inside."""
