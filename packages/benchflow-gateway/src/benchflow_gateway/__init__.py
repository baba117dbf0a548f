"""The model gateway: every model call of a rollout, recorded before it is answered."""

from typing import TYPE_CHECKING

from benchflow_contracts import ReplayDivergedError
from benchflow_contracts.gateway import TokenLevel
from benchflow_contracts.lazy_names import lazy_names

from .call_log import CallLog, read_calls
from .errors import CallBudgetError, RecordLimitError
from .limits import Limits
from .prices import Price, PriceTable

if TYPE_CHECKING:
    from .gateway import HttpGateway
    from .probe import ProbeError, probe_tokens
    from .public import PublicAddress, Publisher
    from .route import Route
    from .sampling import SamplingOverride
    from .upstream import UpstreamKind

__all__ = [
    "CallBudgetError",
    "CallLog",
    "HttpGateway",
    "Limits",
    "Price",
    "PriceTable",
    "ProbeError",
    "PublicAddress",
    "Publisher",
    "RecordLimitError",
    "ReplayDivergedError",
    "Route",
    "SamplingOverride",
    "TokenLevel",
    "UpstreamKind",
    "probe_tokens",
    "read_calls",
]

# A program that only reads records does not import an HTTP server.
_HOMES = {
    "HttpGateway": "gateway",
    "ProbeError": "probe",
    "PublicAddress": "public",
    "Publisher": "public",
    "Route": "route",
    "SamplingOverride": "sampling",
    "UpstreamKind": "upstream",
    "probe_tokens": "probe",
}


if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
