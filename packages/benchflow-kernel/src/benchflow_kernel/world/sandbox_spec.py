"""The specs of the agent's sandbox and of a fresh one for grading."""

from collections.abc import Sequence

from benchflow_contracts import (
    AgentNeeds,
    ModelEndpoint,
    Mount,
    RolloutConfig,
    SandboxSpec,
    Task,
    TaskVerifier,
    UsageError,
)


def agent_spec(task: Task, config: RolloutConfig, needs: Sequence[AgentNeeds]) -> SandboxSpec:
    """Return the spec of the sandbox that the task describes, with what its agents need.

    The agents' variables do not override the task's.

    Raises:
        UsageError: Two agents need different values of one variable, mount or endpoint.
    """
    environment = task.config.environment
    model = config.model or _model(needs)
    network = environment.network
    parts = task.parts
    return SandboxSpec(
        image=environment.image if parts.recipe is None else None,
        recipe=parts.recipe,
        workdir=environment.workdir,
        user=environment.user,
        env={**_env(needs), **environment.env},
        entrypoint="image" if environment.keep_entrypoint else None,
        mounts=_mounts(needs),
        network="model-only" if network == "none" and model is not None else network,
        allowed_hosts=environment.allowed_hosts,
        model=model,
        limits=config.limits or environment.limits(),
        services=parts.services,
        inner_networks=parts.inner_networks,
        container=parts.container,
    )


def fresh_grading_spec(
    spec: SandboxSpec, agent_env: frozenset[str], verifier: TaskVerifier
) -> SandboxSpec:
    """Return the spec of the same sandbox without anything that was there for the agent.

    The image's entrypoint does not run in it, it has no services, and its network is the
    verifier's.
    """
    no_services: dict[str, object] = {"needs": {}, "networks": {}, "volumes": {}}
    return SandboxSpec(
        image=spec.image,
        recipe=spec.recipe,
        image_search=spec.image_search,
        workdir=spec.workdir,
        user=spec.user,
        env={name: value for name, value in spec.env.items() if name not in agent_env},
        network=verifier.network,
        allowed_hosts=verifier.allowed_hosts,
        limits=spec.limits,
        container=spec.container.model_copy(update=no_services),
    )


def _model(needs: Sequence[AgentNeeds]) -> ModelEndpoint | None:
    models = [need.model for need in needs if need.model is not None]
    if any(model != models[0] for model in models):
        raise UsageError(
            "the agents of the roles need different model endpoints",
            hint="give the rollout one endpoint: a sandbox reaches only one",
        )
    return models[0] if models else None


def _env(needs: Sequence[AgentNeeds]) -> dict[str, str]:
    merged: dict[str, str] = {}
    for need in needs:
        for name, value in need.env.items():
            if merged.setdefault(name, value) != value:
                raise UsageError(f"the agents of the roles need different values of {name!r}")
    return merged


def _mounts(needs: Sequence[AgentNeeds]) -> tuple[Mount, ...]:
    merged: dict[str, Mount] = {}
    for need in needs:
        for mount in need.mounts:
            if merged.setdefault(mount.target, mount) != mount:
                raise UsageError(
                    f"the agents of the roles need different mounts at {mount.target!r}"
                )
    return tuple(merged.values())
