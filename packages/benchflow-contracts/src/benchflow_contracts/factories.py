"""The signatures of the entry points of each registry group."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from .agent import Agent
from .door import Endpoint
from .environment import EnvironmentFactory
from .exporter import Exporter
from .image import PullPolicy
from .job import WorkerBackend
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
    """Group `benchflow.sandboxes`, for providers that pull images; they have a parameter `pull`."""

    def __call__(
        self, *, allow_unisolated: bool = False, pull: PullPolicy | None = None
    ) -> SandboxProvider:
        """Return a provider. Starts nothing. Without `pull`, the provider chooses."""
        ...


class AgentFactory(Protocol):
    """Group `benchflow.agents`, and what `--agent-import-path` names."""

    def __call__(self) -> Agent:
        """Return the agent. Installs and starts nothing."""
        ...


@runtime_checkable
class SupportsTask(Protocol):
    """An `Agent` that reads its task, such as a solver of another framework that acts on the host.

    Other agents get only the prompt and the sandbox.
    """

    def for_task(self, task: Task) -> Agent:
        """Return the agent for the rollouts of `task`. Starts nothing.

        Raises:
            AgentError: The agent cannot work on this task.
        """
        ...


class EnvironmentLoader(Protocol):
    """Group `benchflow.environments`, and what `--environment-import-path` names."""

    def __call__(self, task: Task, *, manifest: Path | None = None) -> EnvironmentFactory:
        """Return the factory of the environment of `task`. Starts nothing.

        `manifest` is the `environment.toml` of the task, if there is one. The provider's own
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
        """Return the rewards of `task`. Exactly one is named `reward`; it gives the return.

        The reward's own settings are in `task.config.verifier.options`. `protocol` is the
        registered object of the group `benchflow.grading_protocols` that the verifier's `protocol`
        names, for rewards that run tests. `None` is the default protocol of the rewards.

        Raises:
            TaskError: The `[verifier]` table asks for what does not exist.
        """
        ...


class BackendFactory(Protocol):
    """Group `benchflow.backends`, and what `backend.import_path` of a job names."""

    def __call__(
        self,
        executor: str,
        capacity: Mapping[str, int],
        *,
        options: Mapping[str, Any],
        on_capacity: Callable[[Mapping[str, int]], None],
    ) -> WorkerBackend:
        """Return the backend. Starts nothing.

        The factory may have more keyword parameters: the table `[backend.options]` of a job.

        Args:
            executor: The executor, as `module:attr`, which every worker imports and calls with
                `options`. The result is an asynchronous context manager of an `Executor`.
            capacity: The resources that may be held at once; one that is left out is limited by
                the workers only.
            options: The arguments of the executor, as JSON.
            on_capacity: Is called on the driver's event loop when workers joined or left.

        Raises:
            UsageError: A setting is wrong.
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
