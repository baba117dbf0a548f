"""A fake of every Protocol, for unit tests. Nothing here isolates or runs anything.

Each fake records what is done to it and breaks on demand: `fail_on` and `hang_on`
name methods, at construction or later through `faults`.
"""

from .agent import FAKE_AGENT_CAPABILITIES, FakeAgent
from .backend import FakeBackend
from .call import ExecHandler, FakeCall, FakeStreams, ProgramHandler
from .clock import FakeClock
from .environment import FakeEnvironment, FakeService
from .evidence_store import FakeEvidenceStore
from .executor import FakeExecutor, FakeRollout
from .exporter import FakeExporter
from .faults import FakeFaults
from .file_system import FakeEntry, FakeFileSystem
from .finished import fake_finished_rollout, fake_growing_rollout, fake_hostile_rollout
from .gateway import FakeModelGateway, FakeModelRoute
from .host_agent import FakeHostAgent, FakeHostSession
from .job_store import FakeAttempt, FakeJob, FakeJobStore
from .machine import FakeMachine
from .outside_world import FakeOutsideWorld
from .pipe import FakePipe
from .process import FakeProcess
from .program import FakeProgram
from .provider import FAKE_CAPABILITIES, FAKE_WITHOUT_LIVE, FakeSandboxProvider
from .reward import FakeGroupReward, FakeReward
from .sandbox import FakeSandbox
from .script import Act, Crash, Hang, Move, Pose, Say, Stop, Think, ask_with_options
from .session import FakeSession
from .task_adapter import FakeTaskAdapter, write_broken_task, write_fake_task
from .task_source import FakeTaskSource
from .user import FakeUserModel
from .world import FakeWorld

__all__ = [
    "FAKE_AGENT_CAPABILITIES",
    "FAKE_CAPABILITIES",
    "FAKE_WITHOUT_LIVE",
    "Act",
    "Crash",
    "ExecHandler",
    "FakeAgent",
    "FakeAttempt",
    "FakeBackend",
    "FakeCall",
    "FakeClock",
    "FakeEntry",
    "FakeEnvironment",
    "FakeEvidenceStore",
    "FakeExecutor",
    "FakeExporter",
    "FakeFaults",
    "FakeFileSystem",
    "FakeGroupReward",
    "FakeHostAgent",
    "FakeHostSession",
    "FakeJob",
    "FakeJobStore",
    "FakeMachine",
    "FakeModelGateway",
    "FakeModelRoute",
    "FakeOutsideWorld",
    "FakePipe",
    "FakeProcess",
    "FakeProgram",
    "FakeReward",
    "FakeRollout",
    "FakeSandbox",
    "FakeSandboxProvider",
    "FakeService",
    "FakeSession",
    "FakeStreams",
    "FakeTaskAdapter",
    "FakeTaskSource",
    "FakeUserModel",
    "FakeWorld",
    "Hang",
    "Move",
    "Pose",
    "ProgramHandler",
    "Say",
    "Stop",
    "Think",
    "ask_with_options",
    "fake_finished_rollout",
    "fake_growing_rollout",
    "fake_hostile_rollout",
    "write_broken_task",
    "write_fake_task",
]
