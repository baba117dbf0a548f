"""A Step: one edge of the rollout tree."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from ._model import Model
from .ask import Answer, Ask

ToolStatus = Literal["pending", "in_progress", "completed", "failed"]
StopReason = Literal["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"]
"""Why a prompt turn ended, in ACP's words."""


class ToolCall(Model):
    """What the agent asked a tool to do."""

    id: str
    title: str
    kind: str = "other"
    """ACP's ToolKind."""
    name: str | None = None
    """The tool's own name, if the agent reports it."""
    raw_input: Any = None


class Observation(Model):
    """The result of a tool call."""

    tool_call_id: str
    status: ToolStatus
    content: str = ""
    raw_output: Any = None


class Usage(Model):
    """Tokens of the model calls of a step, as reported."""

    input_tokens: int = Field(default=0, ge=0)
    output_tokens: int = Field(default=0, ge=0)
    cached_tokens: int = Field(default=0, ge=0)


class Step(Model):
    """One edge: (reason, act) then (tool in, tool out).

    An Ask ends a step, and its Answer starts the next step. So a question is always a node, and
    each answer is a separate edge.
    """

    id: str
    role: str = "agent"
    skills: tuple[str, ...] = ()
    prompt: str | None = None
    """Set on the first step of a prompt turn."""
    answer: Answer | None = None
    """The answer that started this step."""
    reasoning: str = ""
    message: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    observations: tuple[Observation, ...] = ()
    ask: Ask | None = None
    """The question that ended this step."""
    usage: Usage | None = None
    model_calls: tuple[str, ...] = ()
    """Ids of the recorded model calls behind this step."""
    stop_reason: StopReason | None = None
    """Set on the last step of a prompt turn."""
    meta: Mapping[str, Any] = {}
    started_at: float
    """Seconds since the epoch."""
    finished_at: float
