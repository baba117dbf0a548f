"""The client's half of a live fork: its state, as JSON."""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any, Literal

from benchflow_contracts import AgentError, SessionSnapshot, SessionState
from pydantic import BaseModel, ConfigDict, ValidationError

from .state import ConnectionState, IncomingRequest
from .steps import BuilderState
from .terminals import TerminalsState

if TYPE_CHECKING:
    from collections.abc import Mapping


class ClientState(BaseModel):
    """The state of a client between two reads. `SessionState.data` is its JSON.

    The steps and the session's id are in the state itself.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    next_id: int
    buffer: str
    """The start of a line that has not ended yet, in base64."""
    calls: tuple[tuple[int, str], ...]
    requests: tuple[IncomingRequest, ...]
    prompt_id: int | None
    noise_lines: int
    strays: int
    builder: BuilderState
    terminals: TerminalsState
    snapshot: SessionSnapshot | None
    """How to resume the session from its files, with its mode and options."""

    @classmethod
    def from_parts(
        cls,
        state: ConnectionState,
        builder: BuilderState,
        terminals: TerminalsState,
        snapshot: SessionSnapshot | None,
    ) -> ClientState:
        """Copy the current state."""
        return cls(
            next_id=state.next_id,
            buffer=base64.b64encode(state.buffer).decode("ascii"),
            calls=tuple(state.calls.items()),
            requests=tuple(state.requests.values()),
            prompt_id=state.prompt_id,
            noise_lines=state.noise_lines,
            strays=state.strays,
            builder=builder,
            terminals=terminals,
            snapshot=snapshot,
        )

    def connection(self, session_id: str) -> ConnectionState:
        """Return a new connection state for one child."""
        return ConnectionState(
            next_id=self.next_id,
            buffer=bytearray(base64.b64decode(self.buffer, validate=True)),
            calls=dict(self.calls),
            requests={request.id: request for request in self.requests},
            session_id=session_id,
            prompt_id=self.prompt_id,
            noise_lines=self.noise_lines,
            strays=self.strays,
        )

    def data(self) -> Mapping[str, Any]:
        """Return this state as JSON values."""
        return self.model_dump(mode="json")


def read_state(state: SessionState, agent: str) -> tuple[ClientState, ConnectionState]:
    """Return the client's state and its connection state. They share no object with `state`.

    Raises:
        AgentError: The state is of another agent or of another version of this package.
    """
    if state.agent != agent:
        raise AgentError(
            f"the captured session is of agent {state.agent!r}, not of {agent!r}",
            hint="use the agent of the parent in a live child",
        )
    try:
        # Copy through JSON text, so two children never share a list or a dict.
        client = ClientState.model_validate_json(json.dumps(dict(state.data)))
        return client, client.connection(state.session_id)
    except (ValidationError, binascii.Error, TypeError) as error:
        raise AgentError(
            f"the captured state of agent {agent!r} cannot be read: {error!s:.300}",
            hint="fork again with the installed version of benchflow-agent-acp",
        ) from error
