"""`[agent]`."""

from .network import PhaseNetwork
from .record import Seconds


class AgentPhase(PhaseNetwork):
    """Limits on the agent's run."""

    timeout_sec: Seconds | None = None
    """`None` is unlimited."""
    user: str | int | None = None
    """`None` is the image's own user."""
