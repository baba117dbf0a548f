"""The views that sum up jobs, for the command line: as `/api/v1` has them."""

from typing import Any
from urllib.parse import parse_qsl

from pydantic_core import to_jsonable_python

from benchflow_dashboard.listing import read_index
from benchflow_dashboard.settings import DashboardSettings

from .costs import CostQuery, costs_view
from .rewards import RewardQuery, rewards_view


def list_costs(settings: DashboardSettings, query: str) -> dict[str, Any]:
    """Return cost and tokens as `/api/v1/cost` does.

    Raises:
        UsageError: `query` is not a query of `/cost`.
        StoreError: The index cannot be written.
    """
    wanted = CostQuery.of(dict(parse_qsl(query)))
    view = read_index(settings, lambda session: costs_view(session, wanted))
    found: dict[str, Any] = to_jsonable_python(view)
    return found


def list_rewards(settings: DashboardSettings, query: str) -> dict[str, Any]:
    """Return rewards by space and granularity as `/api/v1/rewards` does.

    Raises:
        UsageError: `query` is not a query of `/rewards`.
        StoreError: The index cannot be written.
    """
    wanted = RewardQuery.of(dict(parse_qsl(query)))
    view = read_index(settings, lambda session: rewards_view(session, wanted))
    found: dict[str, Any] = to_jsonable_python(view)
    return found
