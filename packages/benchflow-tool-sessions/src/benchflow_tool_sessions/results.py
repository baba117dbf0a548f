"""What a tool session returns: tools, results of calls, and the outcome."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchflow_contracts import BenchFlowError
from benchflow_engine.rollout import RunResult

SUBMIT = "submit"
"""The tool that ends the turn."""


class SessionEndedError(BenchFlowError):
    """A call came after the end of the session."""

    boundary = "usage"
    default_culprit = "operator"
    default_hint = "open a new session; `outcome()` has the verdict of this one"


class SessionClosedError(BenchFlowError):
    """The caller closed a session, so its branch has no verdict."""

    boundary = "usage"
    default_culprit = "operator"
    default_hint = "submit a session before you close it"


class NoSessionError(BenchFlowError):
    """The manager does not have a session with this id."""

    boundary = "usage"
    default_culprit = "operator"
    default_hint = "open a new session; an idle session is deleted after a while"


class SessionLimitError(BenchFlowError):
    """The manager has as many sessions as it may have."""

    boundary = "usage"
    default_culprit = "operator"
    default_retryable = True
    default_hint = "close a session, or raise the limit"


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool: its name, its description, and the JSON schema of its arguments."""

    name: str
    description: str
    input_schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool call. All texts are valid UTF-8 and have a limited length."""

    text: str
    """The result as text. A block that is not text is named by its type."""
    is_error: bool = False
    """Whether the tool failed, or refused its arguments. The session continues."""
    truncated: bool = False
    """Whether a part of the text was cut."""
    finished: bool = False
    """Whether the session takes no further call. `ToolSession.outcome` then has the verdict."""
    data: Mapping[str, Any] | None = None
    """The result as JSON, such as the exit code of a command."""
    content: tuple[Mapping[str, Any], ...] | None = None
    """Content blocks in the form of MCP, if the tool returned more than one text."""

    @property
    def blocks(self) -> tuple[Mapping[str, Any], ...]:
        """The content blocks in the form of MCP."""
        return self.content or ({"type": "text", "text": self.text},)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a session."""

    reward: float | None
    """The verdict; `None` if the session was not scored. It is never a silent 0."""
    items: Mapping[str, float]
    """Named parts of the reward, as the verifier reported them."""
    unscored: str | None
    """Why the session has no reward; `None` with a reward."""
    ended_early: str | None
    """The limit or failure that ended the session before its last `submit`, as one line."""
    result: RunResult | None
    """The recorded rollout; `None` if the session was closed or could not start, and while other
    sessions of the rollout run."""

    @property
    def truncated(self) -> bool:
        """Whether something else than the last `submit` ended the session."""
        return self.ended_early is not None


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Limits of one session. Times are in seconds.

    The children of a fork have the calls of their parent behind them, and each has the time of a
    turn again.

    The task limits the time of a turn, and `RunConfig.agent.idle_timeout_sec` the time without a
    call. What the session did until such a limit is graded.
    """

    calls: int | None = None
    """Tool calls, without `submit`. The session ends after the last one, and is graded."""
    sessions: int = 1
    """Sessions that one rollout may have by forks. With 1, the session cannot be forked."""
    total_sec: float | None = None
    """The time until the session is closed without a verdict, also while it is graded. The
    children of forks are closed with it."""
    call_sec: float = 600.0
    """The time of one tool call. The tool gets an error."""
    output_chars: int = 30_000
    """Characters of the text of one result. The middle is cut."""
    input_bytes: int = 4 * 1024 * 1024
    """The size of the arguments of one call as JSON."""
