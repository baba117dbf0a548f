"""The plan of a rollout: every effective value, decided before anything is started."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchflow_contracts import (
    MODEL_DOOR,
    Agent,
    CallBudget,
    Door,
    Endpoint,
    EnvironmentFactory,
    ModelGateway,
    OutsidePath,
    Reward,
    RolloutIdentity,
    Sandbox,
    SandboxCapabilities,
    SandboxProvider,
    SandboxSpec,
    Task,
    TaskVerifier,
    UserModel,
    WorldSnapshots,
)
from benchflow_contracts.pausing import running_time

from benchflow_kernel.config import RolloutConfig

from .network_policy import NetworkPolicy, StepPhases, policy_of_spec
from .sandbox_spec import fresh_grading_spec
from .settings import Origin, Origins, Setting, with_values
from .turns import LoweredTurn


class SharedFiles(Protocol):
    """Files that rollouts hand on to each other. A branch never rolls them back."""

    async def upload(self, sandbox: Sandbox) -> None:
        """Copy the files in, before the baseline of the agent's file changes.

        Raises:
            BenchFlowError: The rollout cannot begin.
        """
        ...

    async def download(self, sandbox: Sandbox) -> None:
        """Copy the files out, in limited time: the agents have ended, and no test is inside yet.

        Called before each grading; the last call counts. A failure that the agent caused does not
        raise an error, because the agent is still graded.

        Raises:
            BenchFlowError: The sandbox or the host failed.
        """
        ...


@dataclass(frozen=True, slots=True)
class JudgePlane:
    """The model that rewards may ask, and the gateway that records their calls."""

    gateway: ModelGateway
    """Not the gateway of the agents, so that the records and the costs stay apart."""
    upstream: Endpoint
    model: str
    budget: CallBudget | None = None
    """For each node. A call over the limit is refused, and the node has no reward."""


@dataclass(frozen=True, slots=True)
class Planes:
    """The providers of a rollout. They outlive the rollout."""

    provider: SandboxProvider
    agents: Mapping[str, Agent]
    """By the name that `Role.agent` uses."""
    rewards: Sequence[Reward]
    """The verdict of the reward named `reward` is the return of a leaf."""
    environment: EnvironmentFactory | None
    """`None` for a task without an environment."""
    user: Callable[[], UserModel]
    """Called once for each world: every forked child has its own user."""
    gateway: ModelGateway | None = None
    """Records every model call. `None`: agents reach the endpoint through the relay."""
    step_rewards: Sequence[Sequence[Reward]] = ()
    """The rewards of each step of a task with steps; empty uses `rewards` for all steps."""
    seal: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    """Add an authentication code under the key `seal` to the manifest of a saved checkpoint."""
    shared_files: SharedFiles | None = None
    """`None`: the rollout starts from its task alone."""
    judge: JudgePlane | None = None
    """`None`: rewards get no model."""


SOLUTION_DIR = "/solution"
"""The directory of the solution inside the sandbox, for agents that may see it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The resolved rollout. Shared by all of its worlds, and never changed."""

    rollout_id: str
    task: Task
    """The effective task."""
    config: RolloutConfig
    planes: Planes
    turns: tuple[LoweredTurn, ...]
    spec: SandboxSpec
    """The spec of the agent's sandbox in the setup. A provider gets `created_spec`."""
    phases: tuple[StepPhases, ...]
    """The phases of each step; one entry for a task without steps."""
    agent_env: frozenset[str]
    """Names of the variables that only the agents need."""
    skills: Path | None
    """The host directory of the agents' skills."""
    solution: bool
    """Whether an agent may see the task's solution."""
    spawning_environment: str | None = None
    """The name of the environment, if it starts processes by `Sandbox.spawn`."""
    world_snapshots: WorldSnapshots | None = None
    """How another session gets the state of a world outside the sandbox, if there is one."""
    model_path: OutsidePath | None = None
    """How the model's door leads out; `None`: as the provider serves it."""
    capabilities: SandboxCapabilities | None = None
    """The provider's capabilities, if the caller of `resolve` knew them."""
    identity: RolloutIdentity = field(default_factory=RolloutIdentity)
    """What the caller knows of the rollout. Each sandbox adds the rest."""
    origins: Origins = field(default_factory=Origins)
    """The origin of each value."""
    began_at: float = field(default_factory=running_time, compare=False)
    """The `running_time` at which the deadline of the rollout began."""

    def task_of(self, turn: LoweredTurn) -> Task:
        """Return the task that `turn` prompts for: its step, or the task itself."""
        return self.task.step(turn.task_step) if self.task.steps else self.task

    def rewards(self, step: int) -> Sequence[Reward]:
        """Return the rewards of a step of the task."""
        return self.planes.step_rewards[step] if self.planes.step_rewards else self.planes.rewards

    @property
    def turn_limit(self) -> float:
        """The seconds that the turns of a step may take from now on; 0 or less if none are left."""
        seconds, whole = self.config.deadlines.execute, self.config.deadline_sec
        return seconds if whole is None else min(seconds, self.began_at + whole - running_time())

    @property
    def token_limit(self) -> float:
        """The seconds for which a token of the model's route is valid from now on."""
        seconds, whole = self.config.model.access.token_sec, self.config.deadline_sec
        if whole is None:
            return seconds
        return max(1.0, min(seconds, self.began_at + whole - running_time()))

    def fork_seed(self, node: str) -> int:
        """Return the seed of the world at `node`: below 2**63 and not negative.

        The same seed of the rollout gives the same seeds; without one, the same rollout id does.
        Siblings have different seeds.
        """
        own = self.config.seed
        text = f"{self.rollout_id}\0{node}" if own is None else f"seed {own}\0{node}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1

    @property
    def max_turns(self) -> int:
        """The number of declared turns, or the task's `max_turns` if that is more."""
        if self.task.steps:
            return len(self.turns)
        return max(len(self.turns), self.task.config.agent.max_turns)

    def first_network(self, step: int | None) -> NetworkPolicy:
        """Return the network of a new sandbox: for the setup, or for the agent's phase of `step`.

        Give `step` for a sandbox from a checkpoint.
        """
        return policy_of_spec(self.spec) if step is None else self.phases[step].agent

    def created_spec(self, step: int | None, model: Endpoint | None) -> SandboxSpec:
        """Return `spec` with the two values that are known only during a run.

        The first is the network: a sandbox from a checkpoint starts in the agent's phase of
        `step`. The second is `model`, the gateway's route, to which the model door leads.
        """
        network = self.first_network(step)
        update = {"network": network.mode, "allowed_hosts": network.hosts}
        spec = with_values(self.spec, update)
        door = spec.door(MODEL_DOOR)
        if model is None or door is None:
            return spec
        return spec.with_door(Door.to(model, port=door.port, path=self.model_path))

    def grading_spec(self, verifier: TaskVerifier) -> SandboxSpec:
        """Return the spec of a fresh grading sandbox."""
        return fresh_grading_spec(self.spec, self.agent_env, verifier)

    def settings(self) -> Iterator[Setting]:
        """Return every effective value with its origin. Secrets are masked."""
        origins, config = self.origins, self.config
        steps = self.task.steps
        for turn in self._first_turns():
            prefix = f"steps.{turn.task_step}.role" if steps else "role"
            yield from origins.settings(f"{prefix}.{turn.role.name}", turn.role)
        yield from origins.settings("skills", self.skills)
        yield from origins.settings("sandbox", self.spec)
        if self.model_path is not None:
            where = origins.find("model.access.mode")
            yield Setting("model.path", self.model_path, where)
        for index, phases in enumerate(self.phases):
            yield from self._phase_settings(f"steps.{index}." if steps else "", phases)
        yield from origins.settings("verifier", self.task.config.verifier)
        for index, step in enumerate(steps):
            yield from origins.settings(f"steps.{index}.verifier", step.verifier)
        for name in ("user", "artifacts"):
            yield from origins.settings(name, getattr(self.task.config, name))
        for name in (
            "seed",
            "deadline_sec",
            "deadlines",
            "branch",
            "keep",
            "capture_state",
            "forward_env",
        ):
            yield from origins.settings(name, getattr(config, name))
        if self.capabilities is not None:
            yield from self._capability_settings(self.capabilities)

    def _first_turns(self) -> Iterator[LoweredTurn]:
        """Return one turn of each role, of each step."""
        roles: set[tuple[int, str]] = set()
        for turn in self.turns:
            if (key := (turn.task_step, turn.role.name)) not in roles:
                roles.add(key)
                yield turn

    def _phase_settings(self, prefix: str, phases: StepPhases) -> Iterator[Setting]:
        """Return the network and user of the agent's turn, and the network of its tests."""
        agent, tests = phases.agent, phases.tests

        def origin(name: str, otherwise: str) -> Origin:
            own = f"{prefix}{name}"
            return self.origins.find(own if self.origins.is_given(own) else otherwise)

        where = origin("agent.network", "sandbox.network")
        yield Setting(f"{prefix}agent.network", agent.mode, where)
        yield Setting(f"{prefix}agent.allowed_hosts", list(agent.hosts), where)
        user = phases.user or self.spec.user
        yield Setting(f"{prefix}agent.user", user, origin("agent.user", "sandbox.user"))
        if tests is not None:
            where = self.origins.find(f"{prefix}verifier.network")
            yield Setting(f"{prefix}tests.network", tests.mode, where)

    def _capability_settings(self, capabilities: SandboxCapabilities) -> Iterator[Setting]:
        origin = Origin("provider", self.planes.provider.name)
        for setting in self.origins.settings("provider", capabilities):
            yield Setting(setting.name, setting.value, origin)
