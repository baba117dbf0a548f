"""The dashboard: runs, rollout trees and rewards in the browser. It only reads what runs write."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .app import create_app
    from .index import reindex
    from .listing import (
        export_runs,
        list_annotations,
        list_failures,
        list_runs,
        list_steps,
        read_fleet,
    )
    from .reports.commands import list_costs, list_rewards
    from .server import serve
    from .settings import DashboardSettings, read_settings

__all__ = [
    "DashboardSettings",
    "create_app",
    "export_runs",
    "list_annotations",
    "list_costs",
    "list_failures",
    "list_rewards",
    "list_runs",
    "list_steps",
    "read_fleet",
    "read_settings",
    "reindex",
    "serve",
]

_HOMES = {
    "DashboardSettings": "settings",
    "create_app": "app",
    "export_runs": "listing",
    "list_annotations": "listing",
    "list_costs": "reports.commands",
    "list_failures": "listing",
    "list_rewards": "reports.commands",
    "list_runs": "listing",
    "list_steps": "listing",
    "read_fleet": "listing",
    "read_settings": "settings",
    "reindex": "index",
    "serve": "server",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use: `bench --help` needs none of them."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
