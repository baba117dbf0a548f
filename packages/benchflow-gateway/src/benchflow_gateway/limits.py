"""Limits for one caller or one upstream."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits against hostile and slow peers. Sizes in bytes, times in seconds."""

    request_bytes: int = 32 * 1024 * 1024
    request_values: int = 100_000
    """JSON values in a request. A long session has some thousands."""
    requests_bytes: int = 64 * 1024 * 1024
    """Total size of the requests of one route at a time. Later requests wait unread."""
    record_bytes: int | None = None
    """Total size of the recorded calls of one rollout, on all of its routes."""
    response_bytes: int = 64 * 1024 * 1024
    event_bytes: int = 8 * 1024 * 1024
    """One server-sent event of an upstream."""
    head_sec: float = 75
    """For a request's head, and between two requests on one connection."""
    body_sec: float = 120
    """For a request's body."""
    write_sec: float = 120
    """For the agent to read written data."""
    connect_sec: float = 30
    idle_sec: float = 900
    """For an upstream without any data."""
