"""The boxes: the agent's, and a fresh one for grading."""

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


def merged_spec(task: Task, config: RolloutConfig, needs: Sequence[AgentNeeds]) -> SandboxSpec:
    """Return the box that the task describes and that every agent can live in.

    The agents' variables do not override the task's.

    Raises:
        UsageError: Two agents need different things at the same place.
    """
    environment = task.config.environment
    model = config.model or _model(needs)
    outside = environment.network
    parts = task.parts
    return SandboxSpec(
        image=environment.image if parts.recipe is None else None,
        recipe=parts.recipe,
        workdir=environment.workdir,
        user=environment.user,
        env={**_env(needs), **environment.env},
        entrypoint="image" if environment.keep_entrypoint else None,
        mounts=_mounts(needs),
        network="model-only" if outside == "none" and model is not None else outside,
        allowed_hosts=environment.allowed_hosts,
        model=model,
        limits=config.limits or environment.limits(),
        services=parts.services,
        inner_networks=parts.inner_networks,
        container=parts.container,
    )


def grading_box(
    spec: SandboxSpec, agent_env: frozenset[str], verifier: TaskVerifier
) -> SandboxSpec:
    """Return the same machine without anything that was there for the agent.

    Nothing of the image's own runs in it, no service is beside it, and it reaches what the
    verifier may reach.
    """
    alone: dict[str, object] = {"needs": {}, "networks": {}, "volumes": {}}
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
        container=spec.container.model_copy(update=alone),
    )


def _model(needs: Sequence[AgentNeeds]) -> ModelEndpoint | None:
    models = [need.model for need in needs if need.model is not None]
    if any(model != models[0] for model in models):
        raise UsageError(
            "the roles' agents need different model endpoints",
            hint="a sandbox reaches one outside address; give the rollout one endpoint",
        )
    return models[0] if models else None


def _env(needs: Sequence[AgentNeeds]) -> dict[str, str]:
    merged: dict[str, str] = {}
    for need in needs:
        for name, value in need.env.items():
            if merged.setdefault(name, value) != value:
                raise UsageError(f"the roles' agents need different values of {name!r}")
    return merged


def _mounts(needs: Sequence[AgentNeeds]) -> tuple[Mount, ...]:
    merged: dict[str, Mount] = {}
    for need in needs:
        for mount in need.mounts:
            if merged.setdefault(mount.target, mount) != mount:
                raise UsageError(f"the roles' agents mount different things at {mount.target!r}")
    return tuple(merged.values())
