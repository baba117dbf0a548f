"""Verifiers and BenchFlow, in both directions.

`benchflow-adapters-verifiers` is the id of a taskset and of an environment in verifiers 0.4: its
loaders find `BenchFlowTaskset` and `BenchFlowEnv` here. Both import verifiers on first use, so
install verifiers in the same environment.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .env import BenchFlowEnv
    from .taskset import BenchFlowTaskset

__all__ = ["BenchFlowEnv", "BenchFlowTaskset"]

_MODULES = {"BenchFlowEnv": "env", "BenchFlowTaskset": "taskset"}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - verifiers' loaders take any attribute
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
