"""NeMo Gym: BenchFlow's sandboxes, tasks and agents there, and its resources servers here."""

from .broker import SandboxBroker
from .leases import CommandRequest, LeaseRequest, SandboxLease, SandboxService

__all__ = [
    "CommandRequest",
    "LeaseRequest",
    "SandboxBroker",
    "SandboxLease",
    "SandboxService",
]
