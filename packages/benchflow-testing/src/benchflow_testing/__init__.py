"""The conformance kit for third parties, and the fakes.

`check_sandbox`, `check_adapter`, `check_agent`, `check_backend`, `check_clock`,
`check_environment`, `check_evidence_store`, `check_executor`, `check_exporter`, `check_gateway`,
`check_group_reward`, `check_job_store`, `check_outside_world`, `check_reward`, `check_task_source`
and `check_user_model` run the kit without a test framework; `sandbox_checks()` and its siblings are
the lists to parametrize tests with. The fakes are in `benchflow_testing.fakes`.
"""

from .adapter_kit import AdapterCheck, AdapterSubject, adapter_checks, check_adapter
from .agent_kit import agent_checks, check_agent
from .agent_subject import AgentCheck, AgentSubject
from .backend_kit import backend_checks, check_backend, resizable_backend_checks
from .backend_subject import BackendCheck, BackendSession, BackendSubject
from .check import (
    Check,
    CheckFailedError,
    CheckResult,
    CheckSkippedError,
    CheckStatus,
    run_check,
    run_checks,
)
from .clock_kit import ClockCheck, check_clock, clock_checks
from .environment_kit import (
    EnvironmentCheck,
    EnvironmentSubject,
    check_environment,
    environment_checks,
)
from .evidence_kit import (
    EvidenceCheck,
    EvidenceSubject,
    check_evidence_store,
    evidence_checks,
)
from .executor_kit import ExecutorCheck, ExecutorSubject, check_executor, executor_checks
from .exporter_kit import (
    ExporterCheck,
    ExporterSubject,
    check_exporter,
    exporter_checks,
)
from .gateway_kit import GatewayCheck, GatewaySubject, check_gateway, gateway_checks
from .group_reward_kit import (
    GroupRewardCheck,
    GroupRewardSubject,
    check_group_reward,
    group_reward_checks,
)
from .job_store_kit import (
    JobStoreCheck,
    JobStoreSubject,
    RecordedAttempt,
    StoredJob,
    check_job_store,
    job_store_checks,
)
from .outside_kit import (
    OutsideCheck,
    OutsideSubject,
    call_tool,
    check_outside_world,
    outside_checks,
)
from .reward_kit import RewardCheck, RewardSubject, check_reward, reward_checks
from .sandbox_kit import check_sandbox, open_sandbox_subject, sandbox_checks
from .sandbox_report import ABILITIES, Ability, SandboxReport
from .sandbox_subject import SandboxCheck, SandboxSubject
from .task_source_kit import (
    TaskSourceCheck,
    TaskSourceSubject,
    check_task_source,
    task_source_checks,
)
from .user_kit import UserCheck, UserSubject, check_user_model, user_model_checks

__all__ = [
    "ABILITIES",
    "Ability",
    "AdapterCheck",
    "AdapterSubject",
    "AgentCheck",
    "AgentSubject",
    "BackendCheck",
    "BackendSession",
    "BackendSubject",
    "Check",
    "CheckFailedError",
    "CheckResult",
    "CheckSkippedError",
    "CheckStatus",
    "ClockCheck",
    "EnvironmentCheck",
    "EnvironmentSubject",
    "EvidenceCheck",
    "EvidenceSubject",
    "ExecutorCheck",
    "ExecutorSubject",
    "ExporterCheck",
    "ExporterSubject",
    "GatewayCheck",
    "GatewaySubject",
    "GroupRewardCheck",
    "GroupRewardSubject",
    "JobStoreCheck",
    "JobStoreSubject",
    "OutsideCheck",
    "OutsideSubject",
    "RecordedAttempt",
    "RewardCheck",
    "RewardSubject",
    "SandboxCheck",
    "SandboxReport",
    "SandboxSubject",
    "StoredJob",
    "TaskSourceCheck",
    "TaskSourceSubject",
    "UserCheck",
    "UserSubject",
    "adapter_checks",
    "agent_checks",
    "backend_checks",
    "call_tool",
    "check_adapter",
    "check_agent",
    "check_backend",
    "check_clock",
    "check_environment",
    "check_evidence_store",
    "check_executor",
    "check_exporter",
    "check_gateway",
    "check_group_reward",
    "check_job_store",
    "check_outside_world",
    "check_reward",
    "check_sandbox",
    "check_task_source",
    "check_user_model",
    "clock_checks",
    "environment_checks",
    "evidence_checks",
    "executor_checks",
    "exporter_checks",
    "gateway_checks",
    "group_reward_checks",
    "job_store_checks",
    "open_sandbox_subject",
    "outside_checks",
    "resizable_backend_checks",
    "reward_checks",
    "run_check",
    "run_checks",
    "sandbox_checks",
    "task_source_checks",
    "user_model_checks",
]
