"""Trajectories as messages and as trainer records."""

from .episode import Shape, TraceSource, episode
from .export import (
    ExportReport,
    export_trajectories_to_jsonl,
    trajectory_to_verifiers_record,
    write_json_lines,
)
from .messages import Message, steps_to_messages

__all__ = [
    "ExportReport",
    "Message",
    "Shape",
    "TraceSource",
    "episode",
    "export_trajectories_to_jsonl",
    "steps_to_messages",
    "trajectory_to_verifiers_record",
    "write_json_lines",
]
