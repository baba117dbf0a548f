"""The attempts of a job whose model is a registered policy."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from benchflow_contracts import Completion, Dispatch, Event, Executor, NodeError
from benchflow_contracts.pausing import PauseSwitch, pause_switch
from benchflow_engine.config import RunConfig
from benchflow_kernel import Planes

from .policies import Policies, PolicyOrder, PolicyUse, configured_for


@dataclass(slots=True, eq=False)
class _Attempt:
    """An attempt that runs."""

    use: PolicyUse
    work: asyncio.Task[Completion]
    is_dropped: bool = False
    wants_park: bool = False
    switch: PauseSwitch | None = None
    """Saves the rollout; None before it has started."""


class PolicyAttempts:
    """Runs the local attempts of one job at a policy. It is an `AttemptModels`.

    An attempt starts with the newest weights. `swap` sends its next calls to new ones. `park` saves
    it at its next state that can be restored, and another attempt continues it with the newest
    weights. `drop` ends it without a score, and its slot runs again, as after a fault of the host.
    """

    def __init__(
        self,
        policies: Policies,
        name: str,
        *,
        keeps_endpoint: bool,
        on_swap: Callable[[Dispatch, str], None],
        on_park_refused: Callable[[Dispatch, str], None],
    ) -> None:
        """Prepare the attempts.

        Args:
            policies: The registered policies, among them `name`.
            name: The policy.
            keeps_endpoint: Whether the operator's own endpoint is that of judges and users.
            on_swap: Is called when the next calls of an attempt go to a new version.
            on_park_refused: Is called with the reason when an attempt cannot be saved.
        """
        self._policies = policies
        self._name = name
        self._keeps_endpoint = keeps_endpoint
        self._on_swap = on_swap
        self._on_park_refused = on_park_refused
        self._running: dict[str, _Attempt] = {}

    def wrap(self, executor: Executor) -> Executor:
        """Return the executor that reserves the policy for each attempt."""
        return _PolicyExecutor(self, executor)

    def configure(self, dispatch: Dispatch, config: RunConfig) -> RunConfig:
        """Return the configuration with the endpoint of the weights that the attempt begins with.

        The plan of the job has the endpoint of the time when it was submitted.
        """
        if not self._keeps_endpoint:
            model = config.model.model_copy(update={"base_url": None})
            config = config.model_copy(update={"model": model})
        return configured_for(config, self._running[dispatch.rollout].use.first.endpoint)

    def prepare(self, dispatch: Dispatch, planes: Planes) -> Planes:
        """Return the planes with a gateway that calls the policy.

        Raises:
            UsageError: The rollout has no gateway.
        """
        attempt = self._running[dispatch.rollout]
        switch = attempt.switch = pause_switch()
        switch.on_save_refused = lambda reason: self._on_park_refused(dispatch, reason)
        if attempt.wants_park:
            switch.request_save()
        return attempt.use.prepare(planes)

    async def run(
        self, executor: Executor, dispatch: Dispatch, on_event: Callable[[Event], None]
    ) -> Completion:
        """Run an attempt; see `Executor`. One that is dropped has no score, and may run again."""
        use = self._policies.reserve(
            self._name, f"{dispatch.job}/{dispatch.slot}", lambda order: self._obey(attempt, order)
        )
        use.on_swap = lambda version: self._on_swap(dispatch, version)
        use.begin()
        work = asyncio.get_running_loop().create_task(executor.run(dispatch, on_event))
        attempt = self._running[dispatch.rollout] = _Attempt(use, work)
        try:
            return await work
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not attempt.is_dropped or (task is not None and task.cancelling()):
                raise
            return Completion.of(dispatch, "unscored", error=_stale(self._name, use.first.version))
        finally:
            use.close()
            del self._running[dispatch.rollout]

    @staticmethod
    def _obey(attempt: _Attempt, order: PolicyOrder) -> None:
        """Carry out what an update of the policy says."""
        if order == "drop":
            attempt.is_dropped = True
            attempt.work.cancel()
            return
        attempt.wants_park = True
        if attempt.switch is not None:
            attempt.switch.request_save()


class _PolicyExecutor:
    def __init__(self, attempts: PolicyAttempts, executor: Executor) -> None:
        self._attempts = attempts
        self._executor = executor

    async def run(self, dispatch: Dispatch, on_event: Callable[[Event], None]) -> Completion:
        return await self._attempts.run(self._executor, dispatch, on_event)


def _stale(name: str, version: str) -> NodeError:
    return NodeError(
        boundary="agent",
        type="StaleWeightsError",
        message=f"an update of policy {name!r} dropped the attempt, which began with {version!r}",
        hint="the slot runs again with the newest weights, retry.retries times",
        retryable=True,
        caused_by="host",
    )
