"""Harbor and Terminal-Bench tasks and datasets, read for BenchFlow."""

from .adapter import HarborAdapter
from .compose import Compose, Service
from .config import HarborConfig
from .datasets import Registry, read_directory, read_registry, read_repository
from .digest import task_digest
from .load import load_harbor_task
from .lowering import lower
from .machine import Machine, refusals
from .obstacles import obstacles
from .task import HarborStep, HarborTask, TerminalBench, VerifierPlan

__all__ = [
    "Compose",
    "HarborAdapter",
    "HarborConfig",
    "HarborStep",
    "HarborTask",
    "Machine",
    "Registry",
    "Service",
    "TerminalBench",
    "VerifierPlan",
    "load_harbor_task",
    "lower",
    "obstacles",
    "read_directory",
    "read_registry",
    "read_repository",
    "refusals",
    "task_digest",
]
