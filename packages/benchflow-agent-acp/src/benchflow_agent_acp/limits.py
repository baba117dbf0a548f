"""How much of an agent's output the runner is willing to hold."""

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class WireLimits:
    """Caps on one connection. Going over one ends the session with a typed error.

    The two `log` caps are the exception: what is beyond them is dropped and counted.
    """

    line_bytes: int = 4 * MIB
    json_depth: int = 64
    noise_lines: int = 1000
    """Lines that are not JSON, such as banners."""
    turn_bytes: int = 128 * MIB
    """Everything that the agent writes to stdout within one call."""
    pending_requests: int = 64
    """Requests of the agent that wait for a reply at the same time."""
    steps: int = 5000
    """Per session."""
    log_bytes: int = 64 * MIB
    log_stderr_bytes: int = 8 * MIB
