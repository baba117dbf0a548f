"""What the rollouts of a service share, and why one is lost."""

from dataclasses import dataclass

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
