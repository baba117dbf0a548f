"""Tool sessions: a foreign framework drives one of our tasks by tool calls.

A session is a normal rollout whose agent is driven from outside. So the kernel records the session,
applies the limits and network rules of the task, and grades the result in the usual way.
"""

from .agent import AGENT_NAME, BASE_TOOLS, idle_agent
from .blocking import BlockingSession, BlockingSessions
from .manager import SessionManager
from .results import (
    SUBMIT,
    NoSessionError,
    Outcome,
    SessionEndedError,
    SessionLimitError,
    SessionLimits,
    ToolResult,
    ToolSpec,
)
from .session import SessionStartError, SessionTimeoutError, ToolSession, open_session
from .task_server import (
    BaseTaskServer,
    HasClientFiles,
    TaskServer,
    TaskServerSettings,
    TaskSet,
    task_server,
)

__all__ = [
    "AGENT_NAME",
    "BASE_TOOLS",
    "SUBMIT",
    "BaseTaskServer",
    "BlockingSession",
    "BlockingSessions",
    "HasClientFiles",
    "NoSessionError",
    "Outcome",
    "SessionEndedError",
    "SessionLimitError",
    "SessionLimits",
    "SessionManager",
    "SessionStartError",
    "SessionTimeoutError",
    "TaskServer",
    "TaskServerSettings",
    "TaskSet",
    "ToolResult",
    "ToolSession",
    "ToolSpec",
    "idle_agent",
    "open_session",
    "task_server",
]
