"""What the rollouts of a service share, and why one is lost."""

import asyncio
from dataclasses import dataclass
from types import TracebackType

from benchflow_contracts import BenchFlowError

from .policies import Policies
from .runner import RolloutRunner
from .settings import ServeSettings
from .slots import SlotPool
from .store import ServiceStore
from .task_catalogue import TaskCatalogue


class ServerLostError(BenchFlowError):
    """The server ended while the rollout ran, and no checkpoint of it exists."""

    boundary = "internal"
    default_culprit = "host"
    default_retryable = True
    default_hint = "submit the rollout again"


@dataclass(frozen=True, slots=True)
class ServiceParts:
    """What the rollouts of a service share."""

    settings: ServeSettings
    policies: Policies
    catalogue: TaskCatalogue
    store: ServiceStore
    runner: RolloutRunner
    slots: SlotPool


class TaskOwner(asyncio.TaskGroup):
    """A group of tasks whose block raises its own error, not a group of errors."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await super().__aexit__(kind, error, traceback)
        except BaseExceptionGroup as group:
            if error is not None and group.exceptions == (error,):
                raise error from None
            raise
