"""What the entry points of a registry group are called with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

from .agent import Agent
from .door import Endpoint
from .environment import EnvironmentFactory
from .exporter import Exporter
from .image import PullPolicy
from .reward import Reward
from .sandbox import SandboxProvider
from .task import Task
from .task_listing import AdapterOptions, TaskAdapter


class SandboxProviderFactory(Protocol):
    """Group `benchflow.sandboxes`, and what `--sandbox-import-path` names."""

    def __call__(self, *, allow_unisolated: bool = False) -> SandboxProvider:
        """Return a provider. Starts nothing."""
        ...


class FetchingProviderFactory(Protocol):
    """Group `benchflow.sandboxes`, where images are fetched: known by its parameter `pull`."""

    def __call__(
        self, *, allow_unisolated: bool = False, pull: PullPolicy | None = None
    ) -> SandboxProvider:
        """Return a provider. Starts nothing; without `pull` it is the provider's to say."""
        ...


class AgentFactory(Protocol):
    """Group `benchflow.agents`, and what `--agent-import-path` names."""

    def __call__(self) -> Agent:
        """Return the agent. Installs and starts nothing."""
        ...


class EnvironmentLoader(Protocol):
    """Group `benchflow.environments`, and what `--environment-import-path` names."""

    def __call__(self, task: Task, *, manifest: Path | None = None) -> EnvironmentFactory:
        """Return what makes the environment of `task`; starts nothing.

        `manifest` is the `environment.toml` that belongs to the task, if there is one. Own
        settings are in `task.config.environment.options`.

        Raises:
            ManifestError: The manifest is malformed.
            TaskError: The settings are malformed.
        """
        ...


class RewardFactory(Protocol):
    """Group `benchflow.rewards`, by the verifier's `type`; what `--reward-import-path` names."""

    def __call__(
        self,
        task: Task,
        *,
        isolation: Literal["hermetic", "twin", "shared"] | None = None,
        judge: Endpoint | None = None,
        judge_model: str | None = None,
        protocol: object = None,
    ) -> Sequence[Reward]:
        """Return the rewards of `task`; exactly one is named `reward`, and is its return.

        Own settings are in `task.config.verifier.options`. `protocol` is the registered object of
        the group `benchflow.grading_protocols` that the verifier's `protocol` names, for rewards
        that run tests. `None` is the default protocol of the rewards.

        Raises:
            TaskError: The `[verifier]` table asks for what does not exist.
        """
        ...


class ExporterFactory(Protocol):
    """Group `benchflow.exporters`."""

    def __call__(self) -> Exporter:
        """Return the exporter. Writes nothing."""
        ...


class TaskAdapterFactory(Protocol):
    """Group `benchflow.adapters`."""

    def __call__(self, *, options: AdapterOptions) -> TaskAdapter:
        """Return the adapter. Reads and fetches nothing."""
        ...
