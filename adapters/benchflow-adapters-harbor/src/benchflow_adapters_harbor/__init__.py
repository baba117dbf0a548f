"""Read Harbor and Terminal-Bench tasks and datasets, and export rollouts for Harbor."""

from .adapter import HarborAdapter
from .blockers import blockers, refusals
from .compose import Compose, Service
from .config import HarborConfig
from .datasets import Registry, read_directory, read_registry, read_repository
from .digest import task_digest
from .host_policy import HostPolicy
from .load import load_harbor_task
from .lowering import lower
from .task import HarborStep, HarborTask, TerminalBench, VerifierPlan

__all__ = [
    "Compose",
    "HarborAdapter",
    "HarborConfig",
    "HarborStep",
    "HarborTask",
    "HostPolicy",
    "Registry",
    "Service",
    "TerminalBench",
    "VerifierPlan",
    "blockers",
    "load_harbor_task",
    "lower",
    "read_directory",
    "read_registry",
    "read_repository",
    "refusals",
    "task_digest",
]
