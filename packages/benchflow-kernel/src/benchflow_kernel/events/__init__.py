"""The append-only event log of a rollout: its writer and its reader."""

from .log import EventCallback, EventLog
from .read import EventsRead, read_events

__all__ = ["EventCallback", "EventLog", "EventsRead", "read_events"]
