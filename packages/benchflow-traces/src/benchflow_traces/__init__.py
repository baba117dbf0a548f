"""Production traces as trajectories of BenchFlow.

Decode OTLP, group the spans by conversation, and fold each conversation into a `ObservedRollout`. A
`Reward` scores its last node like that of a rollout, with `Evidence()`.
"""

from .client_records import DecodedRecords, decode_records
from .conversations import conversations
from .observed_rollout import ObservedRollout, observed_rollout, observed_rollouts
from .otlp import OtlpError, decode_logs, decode_traces
from .spans import LogRecord, Span, SpanEvent

__all__ = [
    "DecodedRecords",
    "LogRecord",
    "ObservedRollout",
    "OtlpError",
    "Span",
    "SpanEvent",
    "conversations",
    "decode_logs",
    "decode_records",
    "decode_traces",
    "observed_rollout",
    "observed_rollouts",
]
