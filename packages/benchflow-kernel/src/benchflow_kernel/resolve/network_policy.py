"""The network of a sandbox in each phase of its task."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchflow_contracts import NetworkMode, SandboxSpec, Task, TaskError

from .settings import with_values

_NARROW_TO_WIDE: tuple[NetworkMode, ...] = ("none", "model-only", "allowlist", "public")


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """A network mode, and the hosts of an allowlist."""

    mode: NetworkMode
    hosts: tuple[str, ...] = ()

    def within(self, other: "NetworkPolicy") -> bool:
        """Return whether `other` allows this whole network. Hosts are compared as text."""
        if self.mode == other.mode == "allowlist":
            return set(self.hosts) <= set(other.hosts)
        return _NARROW_TO_WIDE.index(self.mode) <= _NARROW_TO_WIDE.index(other.mode)


@dataclass(frozen=True, slots=True)
class StepPhases:
    """The network and user of one step, or of a task without steps."""

    agent: NetworkPolicy
    user: str | None
    """The agent's user; `None` is the sandbox's default user."""
    tests: NetworkPolicy | None
    """`None` where no tests run in the agent's sandbox."""


def policy_of_spec(spec: SandboxSpec) -> NetworkPolicy:
    """Return the first network of a sandbox with `spec`."""
    return NetworkPolicy(spec.network, spec.allowed_hosts)


def step_phases(task: Task, spec: SandboxSpec) -> tuple[StepPhases, ...]:
    """Return the phases of each step of an effective task. Each phase reaches the doors."""

    def policy(mode: NetworkMode, hosts: tuple[str, ...]) -> NetworkPolicy:
        return NetworkPolicy("model-only" if mode == "none" and spec.doors else mode, hosts)

    def phases_of(part: Task) -> StepPhases:
        agent, verifier = part.config.agent, part.config.verifier
        runs_in_sandbox = verifier.isolation == "shared" and verifier.type == "script"
        own = None if agent.network is None else policy(agent.network, agent.allowed_hosts)
        return StepPhases(
            agent=own or policy_of_spec(spec),
            user=agent.user,
            tests=policy(verifier.network, verifier.allowed_hosts) if runs_in_sandbox else None,
        )

    steps = tuple(phases_of(task.step(at)) for at in range(len(task.steps)))
    return steps or (phases_of(task),)


def with_switches(spec: SandboxSpec, phases: Sequence[StepPhases]) -> SandboxSpec:
    """Return the spec of a sandbox that can switch to the network of each phase."""
    policies = {policy_of_spec(spec), *_policies(phases)}
    modes = {policy.mode for policy in policies} if len(policies) > 1 else set[NetworkMode]()
    return with_values(spec, {"switches": tuple(m for m in _NARROW_TO_WIDE if m in modes)})


def _policies(phases: Sequence[StepPhases]) -> Iterator[NetworkPolicy]:
    for step in phases:
        yield step.agent
        if step.tests is not None:
            yield step.tests


def check_widening(spec: SandboxSpec, phases: Sequence[StepPhases]) -> None:
    """Refuse phases that would end the services of an environment.

    Raises:
        TaskError: A phase after an agent's has a wider network than the agent had. All
            processes would be ended before that phase.
    """
    baseline = now = policy_of_spec(spec)
    for index, step in enumerate(phases):
        wanted = [baseline, step.agent] if index else []
        after = baseline if baseline.within(step.agent) else step.agent
        tests = [] if step.tests is None else [step.tests]
        for before, policy in zip([now, *wanted], wanted, strict=False):
            _check_within(policy, before)
        for policy in tests:
            _check_within(policy, after)
        now = tests[0] if tests else after


def _check_within(policy: NetworkPolicy, before: NetworkPolicy) -> None:
    if not policy.within(before):
        raise TaskError(
            f"network {policy.mode!r} after an agent's {before.mode!r} ends all processes of the"
            " sandbox, and the services of the environment with them",
            where="task.toml:agent.network",
            hint="give no later phase a wider network than the agent's, or grade in another"
            " sandbox",
        )
