"""Whom a box reaches in each phase of its task."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchflow_contracts import NetworkMode, RolloutConfig, SandboxSpec, Task, TaskError

_ORDER: tuple[NetworkMode, ...] = ("none", "model-only", "allowlist", "public")


@dataclass(frozen=True, slots=True)
class Reach:
    """A network, as a sandbox is told of it."""

    mode: NetworkMode
    hosts: tuple[str, ...] = ()

    def within(self, other: "Reach") -> bool:
        """Whether `other` surely allows all of it. Hosts are compared as they are written."""
        if self.mode == other.mode == "allowlist":
            return set(self.hosts) <= set(other.hosts)
        return _ORDER.index(self.mode) <= _ORDER.index(other.mode)


@dataclass(frozen=True, slots=True)
class StepPhases:
    """One step of a task, or all of a task without steps."""

    agent: Reach
    user: str | None
    """Who the agent is; `None` is the box's own user."""
    tests: Reach | None
    """`None` where no tests run in the agent's box."""


def reach_of(spec: SandboxSpec) -> Reach:
    """Return what a box made from `spec` reaches."""
    return Reach(spec.network, spec.allowed_hosts)


def step_phases(task: Task, config: RolloutConfig, spec: SandboxSpec) -> tuple[StepPhases, ...]:
    """Return the phases of each step. The model endpoint is reached in each of them."""

    def reach(mode: NetworkMode, hosts: tuple[str, ...]) -> Reach:
        return Reach("model-only" if mode == "none" and spec.model else mode, hosts)

    def one(part: Task) -> StepPhases:
        agent, verifier = part.config.agent, part.config.verifier
        design = config.isolation or verifier.isolation
        tested = design == "shared" and verifier.type == "script"
        own = None if agent.network is None else reach(agent.network, agent.allowed_hosts)
        return StepPhases(
            agent=own or reach_of(spec),
            user=agent.user,
            tests=reach(verifier.network, verifier.allowed_hosts) if tested else None,
        )

    return tuple(one(task.step(at)) for at in range(len(task.steps))) or (one(task),)


def with_switches(spec: SandboxSpec, phases: Sequence[StepPhases]) -> SandboxSpec:
    """Return the spec of a box that can come into every phase."""
    found = {reach_of(spec), *_of_all(phases)}
    modes = {reach.mode for reach in found} if len(found) > 1 else set[NetworkMode]()
    return spec.model_copy(update={"switches": tuple(m for m in _ORDER if m in modes)})


def _of_all(phases: Sequence[StepPhases]) -> Iterator[Reach]:
    for step in phases:
        yield step.agent
        if step.tests is not None:
            yield step.tests


def check_widening(spec: SandboxSpec, phases: Sequence[StepPhases]) -> None:
    """Refuse phases that would end the services of an environment.

    Raises:
        TaskError: After an agent more is reached than in its time, for which all that runs
            is ended.
    """
    baseline = now = reach_of(spec)
    for index, step in enumerate(phases):
        wanted = [baseline, step.agent] if index else []
        after = baseline if baseline.within(step.agent) else step.agent
        tests = [] if step.tests is None else [step.tests]
        for before, reach in zip([now, *wanted], wanted, strict=False):
            _check_within(reach, before)
        for reach in tests:
            _check_within(reach, after)
        now = tests[0] if tests else after


def _check_within(reach: Reach, before: Reach) -> None:
    if not reach.within(before):
        raise TaskError(
            f"{reach.mode!r} after an agent's {before.mode!r} ends all that runs in the box, and"
            " services of the environment would end with it",
            where="task.toml:agent.network",
            hint="give no phase after the agent's more than the agent's own, or grade in a box"
            " of its own",
        )
