"""What the rollouts of a service share, and why one is lost."""

from dataclasses import dataclass

from benchflow_contracts import BenchFlowError

from .policies import Policies
from .runner import RolloutRunner
from .settings import ServeSettings
from .store import ServiceStore
from .task_catalogue import TaskCatalogue


class EndpointKeyLostError(BenchFlowError):
    """The server was restarted, and a key of a client is never on disk."""

    boundary = "usage"
    default_culprit = "operator"
    default_retryable = True
    default_hint = "submit the rollout again, or register the endpoint as a policy"


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
