"""The base of environments whose world is outside the sandbox."""

from .address import HOSTS, expect_trusted, secret_for, world_url
from .client import (
    EMPTY_SCHEMA,
    Conversation,
    CopiesState,
    ImageBlock,
    JudgesEpisode,
    WorldAnswer,
    WorldClient,
    WorldTool,
)
from .environment import DOOR, PORT, OutsideEnvironment, outside_environment
from .limits import WorldLimits
from .seeded_tasks import SeededTasks, read_options, seeded_task
from .session import RecordedCall, WorldSession
from .task_data import FILE, TaskData, read_task_data
from .tool_server import ToolServer

__all__ = [
    "DOOR",
    "EMPTY_SCHEMA",
    "FILE",
    "HOSTS",
    "PORT",
    "Conversation",
    "CopiesState",
    "ImageBlock",
    "JudgesEpisode",
    "OutsideEnvironment",
    "RecordedCall",
    "SeededTasks",
    "TaskData",
    "ToolServer",
    "WorldAnswer",
    "WorldClient",
    "WorldLimits",
    "WorldSession",
    "WorldTool",
    "expect_trusted",
    "outside_environment",
    "read_options",
    "read_task_data",
    "secret_for",
    "seeded_task",
    "world_url",
]
