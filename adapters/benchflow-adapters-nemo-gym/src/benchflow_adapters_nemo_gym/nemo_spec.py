"""Turn NeMo Gym's spec of a sandbox into a request for a lease.

Source of the format: nemo-gym 0.4.0, `SandboxSpec` of `nemo_gym.sandbox.providers.base`. `ports` is
of its main branch.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from uuid import uuid4

from benchflow_contracts import (
    Model,
    NetworkMode,
    ResourceLimits,
    RolloutIdentity,
    SandboxSpec,
    UsageError,
)
from pydantic import ValidationError

from .leases import LeaseRequest

ROLLOUT_KEYS = ("benchflow.rollout", "rollout_id", "session_id")
"""Keys of `SandboxSpec.metadata` that name the rollout, the first one that is set. Without one, the
sandbox has a rollout of its own."""


class SandboxDefaults(Model):
    """What a spec of NeMo Gym does not say. `provider_options` of a spec may set each field."""

    network: NetworkMode = "none"
    allowed_hosts: tuple[str, ...] = ()
    user: str = ""
    """The user of commands that name none (default: of the image)."""
    name: str | None = None
    """The name of the sandbox in its rollout. The same rollout and name give the same sandbox."""
    idle_sec: float | None = None
    """The lease ends without a call for this time (default: of the broker)."""


class NemoResources(Protocol):
    """The fields of `SandboxResources` that are read."""

    cpu: float | None
    memory_mib: int | None
    disk_gib: int | None
    gpu: int | None


class NemoSandboxSpec(Protocol):
    """The fields of NeMo Gym's `SandboxSpec` that are read."""

    image: str | None
    ttl_s: float | None
    ready_timeout_s: float | None
    workdir: str | None
    env: Mapping[str, str]
    metadata: Mapping[str, str]
    resources: Any
    entrypoint: Sequence[str] | None
    provider_options: Mapping[str, Any]


def lease_request(spec: NemoSandboxSpec, defaults: SandboxDefaults, *, now: float) -> LeaseRequest:
    """Return the lease that a spec asks for. `now` is in seconds since the epoch.

    `ttl_s` is the deadline of the sandbox. `metadata` are the labels of its identity.

    Raises:
        UsageError: The spec asks for a GPU, or an option or a value is wrong.
    """
    options = _options(spec.provider_options, defaults)
    try:
        return LeaseRequest(
            spec=SandboxSpec(
                image=spec.image,
                workdir=spec.workdir or "",
                user=options.user,
                env=dict(spec.env),
                entrypoint=tuple(spec.entrypoint) if spec.entrypoint else None,
                network=options.network,
                allowed_hosts=options.allowed_hosts,
                ports=tuple(getattr(spec, "ports", ())),
                limits=_limits(spec.resources),
            ),
            identity=_identity(spec, now),
            name=options.name or f"nemo-{uuid4().hex}",
            idle_sec=options.idle_sec,
            ready_timeout_sec=spec.ready_timeout_s,
        )
    except ValidationError as error:
        raise UsageError(
            f"the spec of a sandbox is wrong: {_faults(error)}",
            hint="correct `sandbox_spec` in the configuration of the agent",
        ) from error


def _options(options: Mapping[str, Any], defaults: SandboxDefaults) -> SandboxDefaults:
    try:
        return SandboxDefaults.model_validate(defaults.model_dump() | dict(options))
    except ValidationError as error:
        raise UsageError(
            f"`provider_options` is wrong: {_faults(error)}",
            hint=f"use only {', '.join(SandboxDefaults.model_fields)}",
        ) from error


def _limits(resources: NemoResources) -> ResourceLimits:
    if resources.gpu:
        raise UsageError(
            f"the spec asks for {resources.gpu} GPUs, and sandboxes have none",
            hint="leave `gpu` out of the resources",
        )
    limits: dict[str, Any] = {}
    if resources.cpu is not None:
        limits["cpus"] = resources.cpu
    if resources.memory_mib is not None:
        limits["memory_mb"] = resources.memory_mib
    if resources.disk_gib is not None:
        limits["disk_mb"] = resources.disk_gib * 1024
    return ResourceLimits(**limits)


def _identity(spec: NemoSandboxSpec, now: float) -> RolloutIdentity:
    labels = {str(key): str(value) for key, value in spec.metadata.items()}
    rollout = next((labels[key] for key in ROLLOUT_KEYS if labels.get(key)), None)
    deadline = None if spec.ttl_s is None else int(now + spec.ttl_s) + 1
    identity = RolloutIdentity.of_labels(labels)
    return identity.model_copy(
        update={
            "rollout": rollout or uuid4().hex,
            "deadline": identity.deadline if deadline is None else deadline,
        }
    )


def _faults(error: ValidationError) -> str:
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults[:5])
