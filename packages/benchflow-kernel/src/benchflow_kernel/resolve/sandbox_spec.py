"""The specs of the agent's sandbox and of a fresh sandbox for grading."""

from collections.abc import Callable, Sequence

from benchflow_contracts import (
    MODEL_DOOR,
    AgentNeeds,
    Bundle,
    Door,
    Role,
    SandboxSpec,
    Task,
    TaskVerifier,
    UsageError,
)

from benchflow_kernel.config import RolloutConfig

from .settings import Origin, Origins, with_values

Needs = Sequence[tuple[Role, AgentNeeds]]
"""What the agent of each role needs in the sandbox."""


def agent_spec(
    task: Task, config: RolloutConfig, role_needs: Needs, origins: Origins
) -> SandboxSpec:
    """Return the spec of the sandbox that the task describes, with the needs of its agents.

    The agents' variables do not override the task's.

    Raises:
        UsageError: Two agents need different values of one variable, bundle or door.
    """
    environment = task.config.environment
    needs = [need for _, need in role_needs]
    doors = _doors(config, needs)
    network = environment.network
    parts = task.parts
    spec = SandboxSpec(
        image=environment.image if parts.recipe is None else None,
        recipe=parts.recipe,
        workdir=environment.workdir,
        user=environment.user,
        env={**_env(needs), **environment.env},
        entrypoint="image" if environment.keep_entrypoint else None,
        bundles=_bundles(needs),
        network="model-only" if network == "none" and doors else network,
        allowed_hosts=environment.allowed_hosts,
        doors=doors,
        limits=config.limits or environment.limits(),
        services=parts.services,
        inner_networks=parts.inner_networks,
        container=parts.container,
    )
    _note_agents(role_needs, config, origins)
    _note_task(task, config, spec, origins)
    return spec


def with_environment(
    spec: SandboxSpec, name: str, prepare: Callable[[SandboxSpec], SandboxSpec], origins: Origins
) -> SandboxSpec:
    """Return the spec that the environment `name` makes of `spec`, and note its changes."""
    prepared = prepare(spec)
    origin = Origin("environment", name)
    for field in SandboxSpec.model_fields:
        before, after = getattr(spec, field), getattr(prepared, field)
        if field == "env":
            for key in (key for key, value in after.items() if before.get(key) != value):
                origins.note(f"sandbox.env.{key}", origin)
        elif before != after:
            origins.note(f"sandbox.{field}", origin)
    return prepared


def with_world_doors(
    spec: SandboxSpec, name: str, doors: Sequence[Door], origins: Origins
) -> SandboxSpec:
    """Return the spec with the doors to the world of the environment `name`.

    Raises:
        UsageError: The agent has a door of the same name or port.
    """
    for door in doors:
        other = next((d for d in spec.doors if d.name == door.name or d.port == door.port), None)
        if other is not None:
            raise UsageError(
                f"environment {name!r} and the agent both need door {other.name!r} at port"
                f" {other.port}",
                hint="choose another agent",
            )
    network = "model-only" if spec.network == "none" else spec.network
    origin = Origin("environment", name)
    origins.note("sandbox.doors", origin)
    if network != spec.network:
        origins.note("sandbox.network", origin)
    return with_values(spec, {"doors": (*spec.doors, *doors), "network": network})


def _note_agents(role_needs: Needs, config: RolloutConfig, origins: Origins) -> None:
    has_model = config.model.base_url is not None
    if has_model:
        origins.note("sandbox.doors", origins.find("model.base_url"))
    for role, need in role_needs:
        origin = Origin("agent", role.agent)
        for name in need.env:
            origins.note(f"sandbox.env.{name}", origin)
        if need.bundles:
            origins.note("sandbox.bundles", origin)
        if any(not has_model or door.name != MODEL_DOOR for door in need.doors):
            origins.note("sandbox.doors", origin)


def _note_task(task: Task, config: RolloutConfig, spec: SandboxSpec, origins: Origins) -> None:
    environment = task.config.environment
    sources = {name: name for name in ("image", "workdir", "user", "network", "allowed_hosts")}
    sources["entrypoint"] = "keep_entrypoint"
    sources |= {f"env.{name}": f"env.{name}" for name in environment.env}
    if config.limits is None:
        sources |= {"limits": "uncapped", "limits.memory_mb": "memory_mb", "limits.cpus": "cpus"}
        sources |= {"limits.disk_mb": "storage_mb", "limits.pids": "pids"}
    for name, key in sources.items():
        if origins.is_given(f"environment.{key}"):
            origins.note(f"sandbox.{name}", origins.find(f"environment.{key}"))
    if config.limits is not None:
        origins.copy("limits", "sandbox.limits")
    if spec.network != environment.network:
        origins.note("sandbox.network", origins.find("sandbox.doors"))
    for field in ("recipe", "services", "inner_networks", "container"):
        if getattr(spec, field) != SandboxSpec.model_fields[field].default:
            origins.note(f"sandbox.{field}", Origin("task", f"files of the {task.format} task"))


def fresh_grading_spec(
    spec: SandboxSpec, agent_env: frozenset[str], verifier: TaskVerifier
) -> SandboxSpec:
    """Return the spec of the same sandbox, without the needs of the agent.

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


def _doors(config: RolloutConfig, needs: Sequence[AgentNeeds]) -> tuple[Door, ...]:
    endpoint = config.model.endpoint()
    configured = {} if endpoint is None else {MODEL_DOOR: Door.to(endpoint)}
    by_name: dict[str, Door] = {}
    for door in (door for need in needs for door in need.doors):
        if door.name not in configured and by_name.setdefault(door.name, door) != door:
            raise UsageError(
                f"the agents of the roles need different doors {door.name!r}",
                hint="give the rollout one model endpoint",
            )
    return tuple({**by_name, **configured}.values())


def _env(needs: Sequence[AgentNeeds]) -> dict[str, str]:
    result: dict[str, str] = {}
    for need in needs:
        for name, value in need.env.items():
            if result.setdefault(name, value) != value:
                raise UsageError(f"the agents of the roles need different values of {name!r}")
    return result


def _bundles(needs: Sequence[AgentNeeds]) -> tuple[Bundle, ...]:
    result: dict[str, Bundle] = {}
    for need in needs:
        for bundle in need.bundles:
            if result.setdefault(bundle.target, bundle) != bundle:
                raise UsageError(
                    f"the agents of the roles need different bundles at {bundle.target!r}"
                )
    return tuple(result.values())
