"""Rollouts for an env server, made by hand: a tree of two scored leaves, or what the task says."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Literal

from benchflow_contracts import FinishedRollout, NodeError, Sample, TrainingOptions
from benchflow_export import samples_of
from benchflow_serve.problems import NotFoundError, QueueFullError
from benchflow_serve_client import RolloutEvent, RolloutRequest, RolloutStatus
from forked_calls import forked, recorded, routed


class EpisodeSource:
    """The part of the rollout service that an env server uses.

    The task `forked` ends at once, `waits` at its cancellation, `fails` without a score, and
    `late` finds a full queue once.
    """

    def __init__(self) -> None:
        self.requests: list[RolloutRequest] = []
        self.acknowledged: list[str] = []
        self.cancelled: list[str] = []
        self.policies = {"policy"}
        self._rejected = False
        self._ended = asyncio.Event()

    async def submit(self, request: RolloutRequest) -> RolloutStatus:
        if request.task == "late" and not self._rejected:
            self._rejected = True
            raise QueueFullError("the queue is full", retry_after=0.01)
        if request.task not in ("forked", "waits", "fails", "late"):
            raise NotFoundError(f"no task has the id {request.task!r}")
        self.requests.append(request)
        return self.status(f"r{len(self.requests)}")

    def status(self, ident: str) -> RolloutStatus:
        task = self._task(ident)
        is_ended = task != "waits" or ident in self.cancelled
        error = NodeError(boundary="agent", type="AgentError", message="it gave up")
        return RolloutStatus(
            id=ident,
            state="ended" if is_ended else "running",
            outcome="unscored" if task == "fails" else "scored",
            task=task,
            created_at=1.0,
            error=error if task == "fails" else None,
        )

    async def events(self, ident: str) -> AsyncIterator[RolloutEvent | None]:
        yield RolloutEvent(id=1, kind="queued", at=1.0)
        while self.status(ident).state != "ended":
            await asyncio.Event().wait()
        yield RolloutEvent(id=2, kind="ended", at=2.0)

    async def chosen_samples(
        self, ident: str, options: TrainingOptions
    ) -> tuple[FinishedRollout | None, Sequence[Sample], Mapping[str, int]]:
        if self._task(ident) == "fails":
            return None, [], {"unscored": 1}
        rollout = forked(routed(recorded()), rollout_id=ident)
        return rollout, samples_of(rollout), {"unscored": 1}

    def acknowledge(self, ident: str) -> None:
        self.acknowledged.append(ident)

    async def cancel(self, ident: str, *, keep: Literal["none"] = "none") -> Any:
        self.cancelled.append(ident)

    def has_policy(self, name: str) -> bool:
        return name in self.policies

    def _task(self, ident: str) -> str:
        task = self.requests[int(ident[1:]) - 1].task
        assert isinstance(task, str)
        return task
