"""The conformance kit for third parties, and the fakes.

`check_sandbox`, `check_adapter`, `check_agent`, `check_environment`, `check_exporter`,
`check_gateway`, `check_reward` and `check_user_model` run the kit without a test framework;
`sandbox_checks()` and its siblings are the lists to parametrize tests with. The fakes are
in `benchflow_testing.fakes`.
"""

from .adapter_kit import AdapterCheck, AdapterSubject, adapter_checks, check_adapter
from .agent_kit import agent_checks, check_agent
from .agent_subject import AgentCheck, AgentSubject
from .check import (
    Check,
    CheckFailedError,
    CheckResult,
    CheckSkippedError,
    CheckStatus,
    run_check,
    run_checks,
)
from .environment_kit import (
    EnvironmentCheck,
    EnvironmentSubject,
    check_environment,
    environment_checks,
)
from .exporter_kit import (
    ExporterCheck,
    ExporterSubject,
    check_exporter,
    exporter_checks,
)
from .gateway_kit import GatewayCheck, GatewaySubject, check_gateway, gateway_checks
from .reward_kit import RewardCheck, RewardSubject, check_reward, reward_checks
from .sandbox_kit import check_sandbox, open_sandbox_subject, sandbox_checks
from .sandbox_report import ABILITIES, Ability, SandboxReport
from .sandbox_subject import SandboxCheck, SandboxSubject
from .user_kit import UserCheck, UserSubject, check_user_model, user_model_checks

__all__ = [
    "ABILITIES",
    "Ability",
    "AdapterCheck",
    "AdapterSubject",
    "AgentCheck",
    "AgentSubject",
    "Check",
    "CheckFailedError",
    "CheckResult",
    "CheckSkippedError",
    "CheckStatus",
    "EnvironmentCheck",
    "EnvironmentSubject",
    "ExporterCheck",
    "ExporterSubject",
    "GatewayCheck",
    "GatewaySubject",
    "RewardCheck",
    "RewardSubject",
    "SandboxCheck",
    "SandboxReport",
    "SandboxSubject",
    "UserCheck",
    "UserSubject",
    "adapter_checks",
    "agent_checks",
    "check_adapter",
    "check_agent",
    "check_environment",
    "check_exporter",
    "check_gateway",
    "check_reward",
    "check_sandbox",
    "check_user_model",
    "environment_checks",
    "exporter_checks",
    "gateway_checks",
    "open_sandbox_subject",
    "reward_checks",
    "run_check",
    "run_checks",
    "sandbox_checks",
    "user_model_checks",
]
