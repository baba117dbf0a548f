"""Trajectories as messages and as trainer records."""

from .export import ExportReport, export_trajectories_to_jsonl, trajectory_to_verifiers_record
from .messages import Message, steps_to_messages

__all__ = [
    "ExportReport",
    "Message",
    "export_trajectories_to_jsonl",
    "steps_to_messages",
    "trajectory_to_verifiers_record",
]
