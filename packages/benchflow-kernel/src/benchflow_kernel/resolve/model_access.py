"""How a sandbox reaches the model without a tunnel: chosen from what the provider can do."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from benchflow_contracts import (
    MODEL_DOOR,
    OutsidePath,
    SandboxCapabilities,
    SandboxSpec,
    SandboxUnsupportedError,
    Task,
    UsageError,
)

from benchflow_kernel.config import RolloutConfig

from .network_policy import NetworkPolicy, StepPhases
from .settings import Origins

_PREFERRED: tuple[OutsidePath, ...] = ("egress", "token")


def choose_access(
    task: Task,
    config: RolloutConfig,
    spec: SandboxSpec,
    phases: Sequence[StepPhases],
    capabilities: SandboxCapabilities | None,
    origins: Origins,
) -> OutsidePath | None:
    """Return the path of the model's door, or `None` if the provider serves the door.

    Without capabilities, `auto` is the provider's own path, and another mode is not compared with
    the capabilities.

    Raises:
        UsageError: The rollout forks live, which an agent with its own token does not survive, or
            a child could use the token of a parent that continues.
        SandboxUnsupportedError: The provider, or the network of the task, does not allow the path.
    """
    access = config.model.access
    if access.mode == "tunnel" or spec.door(MODEL_DOOR) is None or not config.model.gateway:
        return None
    paths: tuple[OutsidePath, ...] = _PREFERRED
    if access.mode == "auto":
        if capabilities is None or capabilities.doors is not None or access.gateway_url is None:
            return None
    else:
        paths = tuple(path for path in _PREFERRED if path == access.mode)
    _check_declared(task, origins)
    host = urlsplit(access.gateway_url or "").hostname or ""
    policies = {step.agent: None for step in phases}
    reasons = {
        path: next(
            (why for policy in policies if (why := _refusal(path, policy, host, capabilities))),
            None,
        )
        for path in paths
    }
    chosen: OutsidePath | None = next((p for p in paths if reasons[p] is None), None)
    if chosen is None:
        raise SandboxUnsupportedError(
            "; ".join(f"model access {path!r}: {why}" for path, why in reasons.items()),
            hint="use --model-access tunnel, or a sandbox with this path",
        )
    _check_forks(config, capabilities, chosen)
    return chosen


def _check_declared(task: Task, origins: Origins) -> None:
    """Refuse a task that itself says `none`: a tunnel needs no network, and a URL does."""
    tables = [
        ("environment", task.config.environment.network),
        ("agent", task.config.agent.network),
    ]
    tables += [(f"steps.{at}.agent", step.agent.network) for at, step in enumerate(task.steps)]
    for where, mode in tables:
        if mode == "none" and origins.is_given(f"{where}.network"):
            raise SandboxUnsupportedError(
                f"{origins.find(f'{where}.network')} is 'none', so the sandbox cannot reach a"
                " gateway outside",
                hint="use --model-access tunnel, or let the task have the network 'model-only'",
            )


def _refusal(
    path: OutsidePath, policy: NetworkPolicy, host: str, can: SandboxCapabilities | None
) -> str | None:
    """Return why a sandbox with the network `policy` does not reach the gateway at `host`."""
    if can is None:
        return None
    reason, is_offered = can.notes.get(path), path in can.outside_paths
    if path == "egress":
        if not is_offered:
            return reason or "the provider does not add headers outside of the sandbox"
        if policy.mode not in can.egress_networks:
            return reason or f"the provider does not add headers with the network {policy.mode!r}"
    if is_offered:
        return None
    if policy.mode == "public" or (policy.mode == "allowlist" and host in policy.hosts):
        return None
    if policy.mode == "allowlist":
        return f"the network 'allowlist' does not list {host!r}"
    return reason or f"the provider cannot open the network {policy.mode!r} for {host!r} alone"


def _check_forks(config: RolloutConfig, can: SandboxCapabilities | None, path: OutsidePath) -> None:
    policy = config.branch
    while policy is not None:
        if path == "token" and policy.kind == "value":
            raise UsageError(
                "a branch that continues beside its children has a token that is in their files",
                hint="use --model-access tunnel, or another --branch than value",
            )
        policy = policy.then
    forks = config.branch is not None or config.keep.which != "none"
    if forks and can is not None and "live" in can.snapshot_levels:
        raise UsageError(
            "an agent with the URL of one branch cannot continue in a live fork of it",
            hint="use --model-access tunnel, or leave out --branch and --keep",
        )
