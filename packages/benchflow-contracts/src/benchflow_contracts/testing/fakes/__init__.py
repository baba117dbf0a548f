"""A fake of every Protocol, for unit tests. Nothing here isolates or runs anything.

Each fake records what is done to it and breaks on demand: `fail_on` and `hang_on`
name methods, at construction or later through `faults`.
"""

from .agent import FAKE_AGENT_CAPABILITIES, FakeAgent
from .call import ExecHandler, FakeCall, FakeStreams, ProgramHandler
from .environment import FakeEnvironment
from .faults import FakeFaults
from .file_system import FakeEntry, FakeFileSystem
from .pipe import FakePipe
from .process import FakeProcess
from .provider import FAKE_CAPABILITIES, FakeSandboxProvider
from .reward import FakeReward
from .sandbox import FakeSandbox
from .script import Act, Crash, Hang, Move, Pose, Say, Stop, ask_with_options
from .session import FakeSession
from .user import FakeUserModel
from .world import FakeWorld

__all__ = [
    "FAKE_AGENT_CAPABILITIES",
    "FAKE_CAPABILITIES",
    "Act",
    "Crash",
    "ExecHandler",
    "FakeAgent",
    "FakeCall",
    "FakeEntry",
    "FakeEnvironment",
    "FakeFaults",
    "FakeFileSystem",
    "FakePipe",
    "FakeProcess",
    "FakeReward",
    "FakeSandbox",
    "FakeSandboxProvider",
    "FakeSession",
    "FakeStreams",
    "FakeUserModel",
    "FakeWorld",
    "Hang",
    "Move",
    "Pose",
    "ProgramHandler",
    "Say",
    "Stop",
    "ask_with_options",
]
