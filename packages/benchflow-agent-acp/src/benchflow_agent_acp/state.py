"""The state of a connection, as plain data that a fork can copy."""

from dataclasses import dataclass, field
from typing import Any

RequestId = int | str


@dataclass(slots=True)
class IncomingRequest:
    """A request of the agent that waits for a reply."""

    id: RequestId
    method: str
    params: dict[str, Any]


@dataclass(slots=True)
class ConnectionState:
    """One end of a JSON-RPC conversation, between two reads.

    The state is data only: no task, pipe or future. A forked agent process expects its client to
    use the same ids, so each child gets a copy (see `client_state`).
    """

    next_id: int = 1
    buffer: bytearray = field(default_factory=bytearray)
    """The start of a line that has not ended yet."""
    calls: dict[int, str] = field(default_factory=dict[int, str])
    """Our requests without a response: id to method."""
    requests: dict[RequestId, IncomingRequest] = field(
        default_factory=dict[RequestId, IncomingRequest]
    )
    """The agent's requests without a reply: its pending asks."""
    session_id: str | None = None
    prompt_id: int | None = None
    """The `session/prompt` in flight."""
    noise_lines: int = 0
    strays: int = 0
    """The count of responses to unknown ids and of repeated request ids."""
