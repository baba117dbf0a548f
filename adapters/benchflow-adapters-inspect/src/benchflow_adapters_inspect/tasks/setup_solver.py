"""The environment `inspect`: runs the setup solver of an Inspect task before the agent works."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchflow_contracts import (
    BaseEnvironment,
    EnvHandle,
    Environment,
    EnvironmentError_,
    EnvState,
    ProvisionContext,
    Task,
    TaskError,
)

from .sample_folder import FORMAT, SampleFolder, read_sample

ENVIRONMENT: Final = "inspect"

SETUP_STATES: Final[dict[str, dict[str, Any]]] = {}
"""The state of a sample after its setup, by the id of the sandbox. It is on the host, so the agent
cannot change it. The solver and the scorers of the sandbox begin with it."""


def inspect_environments(task: Task, *, manifest: Path | None = None) -> Callable[[], Environment]:
    """Return the factory of the environment of one rollout.

    Raises:
        TaskError: The task is not a sample of Inspect.
    """
    del manifest
    if task.format != FORMAT:
        raise TaskError(f"the environment {ENVIRONMENT!r} is for samples of Inspect")
    rollout = _Rollout(read_sample(task.path))
    return lambda: SetupEnvironment(rollout)


class _Rollout:
    """What the worlds of one rollout share."""

    def __init__(self, folder: SampleFolder) -> None:
        self.folder = folder
        self.state: dict[str, Any] | None = None


class SetupEnvironment(BaseEnvironment):
    """Runs the setup once in a rollout. Its forks begin with the state of that run."""

    name = ENVIRONMENT

    def __init__(self, rollout: _Rollout) -> None:
        self._rollout = rollout
        self._sandbox: str | None = None

    async def provision(self, ctx: ProvisionContext) -> EnvHandle:
        """Run the setup solver.

        Raises:
            EnvironmentError_: The setup failed, Inspect is missing, or the rollout is continued by
                another process, which does not know the state.
        """
        if not ctx.resumed:
            self._rollout.state = await self._run(ctx)
        if self._rollout.state is None:
            raise EnvironmentError_(
                "the state of the setup solver was lost with the process that ran it",
                hint="run the task again",
            )
        self._sandbox = ctx.sandbox.id
        SETUP_STATES[self._sandbox] = self._rollout.state
        return EnvHandle(name=self.name)

    async def _run(self, ctx: ProvisionContext) -> dict[str, Any]:
        try:
            from .solving import run_setup  # noqa: PLC0415 - of the extra
        except ModuleNotFoundError as error:
            raise EnvironmentError_(
                f"the setup solver needs Inspect's package: {error}",
                hint="pip install 'benchflow-adapters-inspect[inspect]'",
            ) from error
        state = await run_setup(self._rollout.folder, ctx.sandbox)
        if isinstance(state, Exception):
            raise state
        return state

    async def query(self) -> EnvState:
        """Return an empty state: the files of the sandbox are not compared."""
        return EnvState()

    async def teardown(self) -> None:
        """Forget the state. Idempotent."""
        if self._sandbox is not None:
            SETUP_STATES.pop(self._sandbox, None)
