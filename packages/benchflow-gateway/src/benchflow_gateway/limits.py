"""What one caller or one upstream may take."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds against hostile and slow peers. Sizes in bytes, times in seconds."""

    request_bytes: int = 32 * 1024 * 1024
    request_values: int = 100_000
    """JSON values in a request: a long session has some thousands."""
    requests_bytes: int = 64 * 1024 * 1024
    """Of the requests that one route holds at a time. What comes beyond waits unread."""
    record_bytes: int | None = None
    """Of the recorded calls of one rollout, all of its routes together."""
    response_bytes: int = 64 * 1024 * 1024
    event_bytes: int = 8 * 1024 * 1024
    """One server-sent event of an upstream."""
    head_sec: float = 75
    """For a request's head, and between two requests on one connection."""
    body_sec: float = 120
    """For a request's body."""
    write_sec: float = 120
    """For the agent to take what was written."""
    connect_sec: float = 30
    idle_sec: float = 900
    """For an upstream to say nothing."""
