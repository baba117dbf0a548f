"""Groups from a `bench serve` on another machine, for each trainer of this package."""

import asyncio
import math
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from benchflow_contracts import Sample, TrainingOptions, UsageError
from benchflow_export import (
    ExcludedLeaf,
    ExcludedReason,
    RolloutGroup,
    TrainerOptions,
    group_samples,
)
from benchflow_serve_client import (
    GroupRequest,
    GroupStatus,
    InFlight,
    ModelEndpoint,
    PolicyUpdate,
    RolloutRequest,
    RolloutStatus,
    ServeClient,
    ServiceError,
    ServiceNotFoundError,
)
from pydantic import ValidationError

_WAIT_SEC: Final = 20.0
_ALL: Final = TrainingOptions(counterfactual=True, require_tokens=False)
"""The trainer's options decide which samples are trained on, so the service sends each one."""


class RemoteGroups:
    """Runs the rollouts that a trainer requests on a rollout service: a GroupServer.

    A request is one group of the service, at one version of the policy. A rollout is expected to
    have `leaves_per_rollout` leaves. A rollout without a score is an excluded leaf with its error.
    Results are acknowledged after they were read, so the service deletes them later.

    With `endpoint`, this class registers the policy, and registers it again if the service was
    restarted. `set_policy_version` names the newest weights of the endpoint, and `in_flight` says
    what running rollouts do with them. Without `endpoint`, another program updates the policy.

    Requests are made on one event loop. `set_policy_version` may be called from any thread.
    """

    def __init__(
        self,
        client: ServeClient,
        task_ids: Iterable[str],
        *,
        policy: str,
        endpoint: ModelEndpoint | None = None,
        in_flight: InFlight = "swap",
        rollout: RolloutRequest | None = None,
        options: TrainerOptions | None = None,
        leaves_per_rollout: int = 1,
    ) -> None:
        """Prepare the server, without a request.

        Args:
            client: The client of the service. The caller closes it.
            task_ids: The tasks of the service that the trainer may request.
            policy: The name of the policy.
            endpoint: The model endpoint of the policy.
            in_flight: See `PolicyUpdate`.
            rollout: The branch policy, sampling, deadline and the rest of each rollout. Its task,
                policy, render and training options are replaced.
            options: What the trainer trains on.
            leaves_per_rollout: The leaves that a rollout usually has.
        """
        if leaves_per_rollout < 1:
            raise UsageError(f"leaves_per_rollout is {leaves_per_rollout}", hint="at least 1")
        self._client = client
        self._tasks = tuple(task_ids)
        self._policy = policy
        self._endpoint = endpoint
        self._in_flight: InFlight = in_flight
        self._rollout = rollout
        self._options = options or TrainerOptions()
        self._leaves = leaves_per_rollout
        self._version: int | None = None
        self._sent: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._updating = asyncio.Lock()
        self._updates: set[asyncio.Task[None]] = set()

    @property
    def task_ids(self) -> list[str]:
        """The ids of the tasks, for the requests of a trainer."""
        return list(self._tasks)

    def set_policy_version(self, version: int) -> None:
        """Note the weights that the endpoint has from now on, and send them to the service."""
        self._version = version
        if self._loop is not None and self._endpoint is not None:
            # Rollouts that run learn of the weights now, and not at the next request.
            with suppress(RuntimeError):  # The loop of the requests is closed.
                self._loop.call_soon_threadsafe(self._begin_update)

    async def request(self, task_id: str, size: int) -> RolloutGroup:
        """Run rollouts of a task; see GroupServer. Cancellation removes their sandboxes.

        Raises:
            UsageError: The task is unknown.
            ServiceError: The service refuses the group, or does not answer.
        """
        if task_id not in self._tasks:
            known = ", ".join(self._tasks[:10])
            raise UsageError(f"unknown task {task_id!r}", hint=f"tasks: {known}")
        self._loop = asyncio.get_running_loop()
        group, version = await self._submit(task_id, math.ceil(size / self._leaves))
        try:
            ended = await self._wait(group)
        except asyncio.CancelledError:
            await asyncio.shield(self._cancel(group))
            raise
        samples: list[Sample] = []
        excluded: list[ExcludedLeaf] = []
        for member in ended.members:
            excluded += _without_score(member)
            if member.leaves:
                samples += await self._samples(member)
        for member in ended.members:
            await self._client.acknowledge(member.id)
        return group_samples(task_id, samples, excluded, self._options, version)

    async def _submit(self, task_id: str, count: int) -> tuple[GroupStatus, int | None]:
        fields = {"policy": self._policy, "render": "leaves", "training": _ALL}
        rollout = self._rollout or RolloutRequest(task=task_id)
        asked = rollout.model_copy(update={"task": task_id, "endpoint": None, **fields})
        request = GroupRequest(size=count, rollout=asked)
        await self._update()
        version = self._version
        try:
            return await self._client.submit_group(request), version
        except ServiceNotFoundError:
            if self._endpoint is None:
                raise
            # A service that was restarted does not have the policy.
            self._sent = None
            await self._update()
            return await self._client.submit_group(request), version

    async def _wait(self, group: GroupStatus) -> GroupStatus:
        while not group.is_ended:
            group = await self._client.group(group.id, wait_sec=_WAIT_SEC)
            if not group.is_ended and self._endpoint is not None:
                await self._register_again()
        return group

    async def _register_again(self) -> None:
        """Register the policy if a restart of the service lost it: its rollouts wait for it."""
        try:
            await self._client.policy(self._policy)
        except ServiceNotFoundError:
            self._sent = None
            await self._update()

    def _begin_update(self) -> None:
        update = asyncio.get_running_loop().create_task(self._update_quietly())
        self._updates.add(update)
        update.add_done_callback(self._updates.discard)

    async def _update_quietly(self) -> None:
        with suppress(ServiceError):  # The next request sends the version again.
            await self._update()

    async def _update(self) -> None:
        """Send the newest version, unless the service has it."""
        if self._endpoint is None:
            return
        async with self._updating:
            version = 0 if self._version is None else self._version
            if self._sent == version:
                return
            update = PolicyUpdate(
                version=str(version), endpoint=self._endpoint, in_flight=self._in_flight
            )
            await self._client.update_policy(self._policy, update)
            self._sent = version

    async def _samples(self, member: RolloutStatus) -> list[Sample]:
        result = await self._client.result(member.id)
        try:
            return [Sample.model_validate(row) for row in result.samples]
        except ValidationError as error:
            fault = error.errors(include_input=False, include_url=False)[0]
            raise UsageError(
                f"a sample of rollout {member.id!r} cannot be read: {fault['msg']}",
                hint="install the version of BenchFlow that the service has",
            ) from None

    async def _cancel(self, group: GroupStatus) -> None:
        """End what runs. A service that does not answer keeps its rollouts."""
        with suppress(ServiceError):
            for member in group.members:
                await self._client.cancel(member.id)


def _without_score(member: RolloutStatus) -> list[ExcludedLeaf]:
    """Return the leaves without a return; one for a rollout without leaves."""
    error = member.error
    detail = "" if error is None else f"{error.boundary}: {error.type}: {error.message}"
    if not member.leaves:
        return [ExcludedLeaf("failed", member.id, detail=detail or f"{member.outcome}")]
    excluded: list[ExcludedLeaf] = []
    for leaf in member.leaves:
        if leaf.reward is None:
            reason: ExcludedReason = "unscored" if error is None else "failed"
            if leaf.integrity == "tampered":
                reason = "tampered"
            excluded.append(ExcludedLeaf(reason, member.id, leaf.node, detail))
    return excluded
