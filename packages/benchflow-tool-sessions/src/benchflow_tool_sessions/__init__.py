"""Tool sessions: a foreign framework drives one of our tasks by tool calls.

A session is a normal rollout whose agent is driven from outside. So the kernel records the session,
applies the limits and network rules of the task, and grades the result in the usual way.
"""

from .agent import AGENT_NAME, BASE_TOOLS, idle_agent
from .blocking import BlockingSession, BlockingSessions
from .driver import BorrowedAction
from .fork_route import (
    FORK_KEY_HEADER,
    FORK_PATH,
    ForkConflictError,
    ForkReplies,
    fork_fault,
    read_fork,
)
from .forks import ForkRefusedError
from .manager import SessionManager
from .results import (
    SUBMIT,
    NoSessionError,
    Outcome,
    SessionClosedError,
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
    "FORK_KEY_HEADER",
    "FORK_PATH",
    "SUBMIT",
    "BaseTaskServer",
    "BlockingSession",
    "BlockingSessions",
    "BorrowedAction",
    "ForkConflictError",
    "ForkRefusedError",
    "ForkReplies",
    "HasClientFiles",
    "NoSessionError",
    "Outcome",
    "SessionClosedError",
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
    "fork_fault",
    "idle_agent",
    "open_session",
    "read_fork",
    "task_server",
]
