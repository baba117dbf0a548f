"""What the client knows about its connection, as plain data that can be copied."""

from dataclasses import dataclass, field
from typing import Any

RequestId = int | str


@dataclass(slots=True)
class IncomingRequest:
    """A request of the agent that waits for our reply."""

    id: RequestId
    method: str
    params: dict[str, Any]


@dataclass(slots=True)
class ConnectionState:
    """One end of a JSON-RPC conversation, between two reads.

    Holds data only: no task, pipe or future. A forked agent process expects its
    client to know the very same ids, so each child gets a copy (see `carry`).
    """

    next_id: int = 1
    buffer: bytearray = field(default_factory=bytearray)
    """The start of a line whose end has not arrived."""
    calls: dict[int, str] = field(default_factory=dict[int, str])
    """Our requests without a response, id to method."""
    requests: dict[RequestId, IncomingRequest] = field(
        default_factory=dict[RequestId, IncomingRequest]
    )
    """The agent's requests without a reply of ours: its pending asks."""
    session_id: str | None = None
    prompt_id: int | None = None
    """The `session/prompt` in flight."""
    noise_lines: int = 0
    strays: int = 0
    """Responses to ids that we do not wait for, and repeated request ids."""
