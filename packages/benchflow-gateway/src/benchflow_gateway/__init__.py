"""The model gateway: every model call of a rollout, recorded before it is answered."""

from .call_log import CallLog, read_calls
from .errors import CallBudgetError, ReplayDivergedError
from .gateway import HttpGateway
from .limits import Limits
from .line import Line
from .prices import Price, PriceTable
from .upstream import UpstreamKind

__all__ = [
    "CallBudgetError",
    "CallLog",
    "HttpGateway",
    "Limits",
    "Line",
    "Price",
    "PriceTable",
    "ReplayDivergedError",
    "UpstreamKind",
    "read_calls",
]
