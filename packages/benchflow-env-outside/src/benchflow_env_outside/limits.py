"""The limits of a session with an outside world."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorldLimits:
    """Times in seconds, and sizes. Neither the agent nor the world can exceed them."""

    open_sec: float = 120
    call_sec: float = 120
    close_sec: float = 15
    calls: int = 1000
    """Tool calls of one world, also those that a child repeats."""
    waiting: int = 32
    """Requests of the agent at one time."""
    request_bytes: int = 1 << 20
    """One request of the agent."""
    result_chars: int = 1 << 20
    """The text of one answer; the rest is cut."""
    images: int = 16
    """Images of one answer, each of at most 8 MiB in base64; others are left out."""
    tools: int = 128
