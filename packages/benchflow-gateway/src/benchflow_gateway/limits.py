"""Limits for one caller or one upstream."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits against hostile and slow peers. Sizes in bytes, times in seconds."""

    request_bytes: int = 32 * 1024 * 1024
    request_values: int = 100_000
    """JSON values in a request. The requests of a long session have some thousands."""
    requests_bytes: int = 64 * 1024 * 1024
    """Total size of the running requests of one route. Further requests wait unread."""
    record_bytes: int | None = None
    """Total size of the recorded calls of one rollout, on all of its routes."""
    response_bytes: int = 64 * 1024 * 1024
    event_bytes: int = 8 * 1024 * 1024
    """One server-sent event of an upstream."""
    head_sec: float = 75
    """Timeout for a request's head, and between two requests on one connection."""
    connections: int | None = None
    """Connections of other machines at one time. `None` is a quarter of the open files."""
    public_calls: int = 64
    """Requests of other machines to one route at one time."""
    body_sec: float = 120
    """Timeout for a request's body."""
    write_sec: float = 120
    """Timeout for the agent to read data."""
    connect_sec: float = 30
    idle_sec: float = 900
    """Timeout for an upstream that sends no data."""
