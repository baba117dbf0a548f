"""The live world behind a node while it is scored."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .environment import Environment, EnvState
from .sandbox import Sandbox, SandboxProvider, SandboxSpec
from .task import Task


@dataclass(frozen=True, slots=True)
class NodeState:
    """What a Reward may look at and grade in.

    Guarantees, when `score` is called: the agent's process group is dead, and
    nothing but the environment's services still runs in `sandbox`. `sandbox` is
    `None` for a rollout that is scored after the fact.

    A hermetic grader copies what it needs under `sandbox.freeze()`, calls
    `sandbox.teardown()` and only then grades in a box of its own from `provider`.
    """

    task: Task
    provider: SandboxProvider | None = None
    sandbox: Sandbox | None = None
    grading_spec: SandboxSpec | None = None
    """What a fresh grading box is made of: the task's image, no model, the verifier's network."""
    environment: Environment | None = None
    env_state: EnvState | None = None
    """The final state, read by the kernel before scoring."""
    goes_on: bool = False
    """More of the rollout follows in this sandbox: it must be left running and as it is, but
    for what `shared` grading does. Set between the steps of a task of several."""
    before_tests: Callable[[], Awaitable[None]] | None = None
    """Awaited before tests run in `sandbox` itself: it then reaches what the verifier may. Where
    that is more than before, everything that ran inside is ended first."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """What a sandbox that is made for grading carries."""
    plays_solution: bool = False
    """Whether the agent ran the task's own solution, which every task must give a 1."""
    log_dir: Path | None = None
    """A host directory for the verifier's output and reward files; made by who writes it."""

    @property
    def artifacts_dir(self) -> Path | None:
        """Beside `log_dir`: where the task's artifacts are kept; made by who writes it."""
        return None if self.log_dir is None else self.log_dir.with_name("artifacts")
