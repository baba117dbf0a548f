"""The panels of a command's help, and the options of a rollout that each command uses."""

from typing import Final

_BRANCHING: Final = (
    "--branch",
    "--branch-n",
    "--branch-at",
    "--branch-every",
    "--branch-at-call",
    "--branch-every-call",
    "--branch-call-share",
    "--branch-seed",
    "--branch-then",
    "--branch-require",
    "--branch-children",
    "--branch-depth",
    "--branch-forks",
    "--branch-concurrency",
    "--branch-wall-sec",
    "--branch-tokens",
    "--branch-disk-mb",
    "--branch-memory-mb",
    "--keep",
    "--keep-mb",
    "--capture-state",
)
_PROVIDER: Final = (
    "--sandbox",
    "--sandbox-import-path",
    "--sandbox-host",
    "--pull",
    "--allow-unisolated",
)
_SANDBOX: Final = (
    *_PROVIDER,
    "--environment-manifest",
    "--environment-import-path",
    "--offline",
    "--forward-env",
    "--force-build",
    "--trust-host-access",
)
_JUDGE: Final = ("--judge-url", "--judge-model", "--judge-api-key-env")
_GRADING: Final = (
    "--isolation",
    "--reward-files",
    "--reward-import-path",
    "--group-reward-import-path",
    *_JUDGE,
    "--expects-changes",
    "--fail-under",
)
_LIMITS: Final = (
    "--deadline-sec",
    "--timeout-multiplier",
    "--agent-idle-timeout",
    "--model-record-mb",
    "--max-cost",
    "--usd-per-mtok",
)
_ENDPOINT: Final = ("--model", "--base-url", "--api-key-env")

_ACCESS: Final = (
    "--model-access",
    "--gateway-url",
    "--gateway-bind",
    "--tls-cert",
    "--tls-key",
    "--token-sec",
    "--token-calls",
    "--token-tokens",
    "--token-usd",
)

_OF_GROUPS: Final = frozenset({"--group-reward-import-path"})
_GROUP_COMMANDS: Final = frozenset({"eval create", "serve"})
"""The commands that run several rollouts of a task, which a group reward scores together."""

PANELS: Final[dict[str, tuple[str, ...]]] = {
    "Common": (
        "--tasks-dir",
        "--dataset",
        "--agent",
        *_ENDPOINT,
        "--repeats",
        "--concurrency",
        "--job-name",
        "--seed",
    ),
    "Tasks": ("--include", "--exclude", "--max-tasks", "--retries"),
    "Agent": (
        "--agent-env",
        "--env-file",
        "--agent-import-path",
        "--reasoning-effort",
        "--upstream",
        "--require-tokens",
        "--gateway",
        "--skill-mode",
        "--skills-dir",
        "--user",
        "--user-model",
    ),
    "Model access": _ACCESS,
    "Branching": _BRANCHING,
    "Sandbox": _SANDBOX,
    "Grading": _GRADING,
    "Limits": _LIMITS,
    "Preview": ("--explain", "--print-config", "--dry-run"),
    "Output": ("--jobs-dir", "--export", "--quiet", "--progress", "--json"),
}
"""The panels and their options, in the order of the help. COMMAND_PANEL has other options."""

COMMAND_PANEL: Final = "Options"

USED: Final[dict[str, frozenset[str]]] = {
    "doctor": frozenset(_PROVIDER),
    "env check": frozenset(_PROVIDER),
    "sandbox list": frozenset(_PROVIDER),
    "sandbox prune": frozenset(_PROVIDER),
    "sandbox check": frozenset(_PROVIDER),
    "agent probe": frozenset((*_PROVIDER, *_ENDPOINT)),
    "rollout import": frozenset(("--reward-import-path", "--user-model", *_ENDPOINT, *_JUDGE)),
    "tasks check": frozenset(
        (*_SANDBOX, *_GRADING, "--timeout-multiplier", "--user", "--user-model", *_ENDPOINT)
    ),
}
"""The commands that do not use every option of a rollout, and the options that they use."""


def is_option_of_rollouts(flag: str) -> bool:
    """Return whether `flag` sets a field of RunConfig."""
    from benchflow_engine.flags import FLAGS

    name = flag.removeprefix("--").replace("-", "_")
    return flag.startswith("--") and name in FLAGS


def is_used(command: str, flag: str) -> bool:
    """Return whether `command`, such as `sandbox list`, uses `flag`."""
    if flag in _OF_GROUPS:
        return command in _GROUP_COMMANDS
    return command not in USED or flag in USED[command] or not is_option_of_rollouts(flag)
