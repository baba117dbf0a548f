"""The dashboard: runs, rollout trees and rewards in the browser. It only reads what runs write.

The names below are loaded on first use: `bench --help` needs none of them.
"""

from typing import TYPE_CHECKING

from benchflow_contracts.lazy_names import lazy_names

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


if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
