"""Read Harbor and Terminal-Bench tasks and datasets, and export rollouts for Harbor.

The readers of git repositories and registries are loaded on first use.
"""

from typing import TYPE_CHECKING

from benchflow_contracts.lazy_names import lazy_names

from .adapter import HarborAdapter
from .blockers import blockers, refusals
from .compose import Compose, Service
from .config import HarborConfig
from .datasets.directory import read_directory
from .digest import task_digest
from .host_policy import HostPolicy
from .load import load_harbor_task
from .lowering import lower
from .task import HarborStep, HarborTask, TerminalBench, VerifierPlan

if TYPE_CHECKING:
    from .datasets.registry import Registry, read_registry
    from .datasets.repository import read_repository

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

_HOMES = {
    "Registry": "datasets.registry",
    "read_registry": "datasets.registry",
    "read_repository": "datasets.repository",
}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
